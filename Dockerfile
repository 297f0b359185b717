# A run that answers over HTTP, or trains. No GPU, no root.
#   docker build --tag annotated .
#   docker run --publish 127.0.0.1:8000:8000 annotated
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 1000 reader \
    && install --directory --owner reader --group reader /runs
WORKDIR /opt/annotated
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY annotated annotated
# PyTorch without CUDA is gigabytes smaller; pip prefers its "+cpu"
RUN pip install --no-cache-dir --constraint requirements.lock \
    --extra-index-url https://download.pytorch.org/whl/cpu '.[serve,text]'

USER 1000
# runs, corpora and what training needs; `docker run --volume` keeps it
WORKDIR /runs
ENV ANNOTATED_DATA=/runs/data PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=9)"]
ENTRYPOINT ["annotated"]
# inside a container 127.0.0.1 is the container: whom to admit, the one who publishes the port decides
CMD ["serve", "--run", "pocket", "--host", "0.0.0.0"]
