# CPU only, without root. INDEX is PyTorch's package index for CPUs, see "Start locally" on its site.
# Build: docker build --build-arg INDEX=... --build-arg VERSION=1.2.3 -t selftrain .   (git is not in the image)
# Use: docker run --rm -v "$PWD/photos:/data:ro" -v "$PWD/runs:/runs" selftrain train /data --labels /data/labels.csv --out /runs/photos
FROM python:3.11-slim
ARG INDEX
ARG VERSION=0.0
RUN useradd --create-home selftrain
COPY . /src
RUN pip install --no-cache-dir --index-url "$INDEX" torch torchvision \
    && SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" pip install --no-cache-dir "/src[offline,onnx,web]" \
    && rm -rf /src
USER selftrain
WORKDIR /home/selftrain
ENV SELFTRAIN_CACHE=/home/selftrain/cache
ENTRYPOINT ["selftrain"]
CMD ["--help"]
