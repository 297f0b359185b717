#!/bin/sh
# Runs a command so that the code which it runs can do little harm (Linux):
#
#     sh contained nbgrader autograde 03
#
# No network; all files but those of this folder can only be read; for each
# process 10 GB of memory and 20 minutes of processor time; 256 processes, of
# which none survives the command. It needs util-linux (unshare, mount,
# prlimit), python3, a kernel that lets users have namespaces, and no
# privileges: root is not counted, so do not be root.
set -eu
if [ $# -eq 0 ]; then
    echo "usage: sh contained COMMAND …" >&2
    exit 2
fi
CONTAINED=$(cd "$(dirname "$0")" && pwd -P)
export CONTAINED
export SECONDS_OF_CPU="${SECONDS_OF_CPU:-1200}"
if [ "$(id -u)" = 0 ]; then
    echo "contained: root may start as many processes as it likes" >&2
fi
if ! unshare --user --map-root-user --net --pid --fork --mount true; then
    echo "This system has no namespaces for users: use the container." >&2
    exit 2
fi
exec unshare --user --map-root-user --net --pid --ipc --mount \
    --mount-proc --fork --kill-child sh -euc '
mount --make-rprivate /
mount --bind "$CONTAINED" "$CONTAINED"
mount -t tmpfs -o size=1g tmpfs /dev/shm
while read -r _ _ _ _ place options _; do
    case $place in "$CONTAINED" | /dev/shm) continue ;; esac
    mount -o "remount,bind,ro${options#r[wo]}" "$place" 2>/dev/null ||
        case $options in
        ro*) ;;
        *) echo "contained: $place can be written" >&2 ;;
        esac
done < /proc/self/mountinfo
python3 -c "
import fcntl, socket, struct
lo = struct.pack(\"16sh\", b\"lo\", 0x49)  # up: a kernel talks to itself
fcntl.ioctl(socket.socket(), 0x8914, lo)
"
cd "$CONTAINED"
export HOME=/dev/shm TMPDIR=/dev/shm
exec prlimit --as=10737418240 --nproc=256 --core=0 \
    --cpu="$SECONDS_OF_CPU" "$@"
' contained "$@"
