"""What installing the package costs: training needs nothing that draws."""

import subprocess
import sys
import textwrap

from .helpers import environment

# a process in which nothing that draws is installed
WITHOUT = textwrap.dedent(
    """
    import importlib, pkgutil, sys

    DRAWS = {"matplotlib", "seaborn", "pandas", "IPython"}

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in DRAWS:
                raise ModuleNotFoundError(f"No module named {name!r}")

    sys.meta_path.insert(0, Absent())
    """
)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_the_books_own_helpers_draw() -> None:
    need = run(
        """
        import annotated

        for module in pkgutil.walk_packages(annotated.__path__, "annotated."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name is None:  # raised above
                    print(module.name)
        """
    ).split()
    assert need  # something is refused at all
    assert all(name.startswith("annotated.book.") for name in need), need


def test_model_and_training_do_without_the_books_helpers() -> None:
    found = run(
        """
        import annotated.model, annotated.training, annotated.since
        import annotated.engine.runner, annotated.engine.search

        print([n for n in sys.modules if n.startswith("annotated.book")])
        """
    )
    assert found.strip() == "[]"
