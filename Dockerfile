# The image that is released, for amd64 and arm64. `make image` makes the same one from this machine's build
# without a container engine (image/archive.sh); a test compares the two.

# One Debian for both stages: a binary runs on the glibc that it was linked with, or a newer one.
FROM rust:1.95-bookworm AS build
WORKDIR /src
# The list of dependencies goes into the binaries, where scanners and the SBOM find it.
RUN cargo install cargo-auditable --version 0.7.7 --locked
COPY . .
RUN cargo auditable build --release --locked

# glibc and libgcc, no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="garage-holdfast" \
      org.opencontainers.image.source="https://github.com/garage-holdfast/garage-holdfast" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/LICENSE /usr/share/doc/garage-holdfast/LICENSE
COPY --from=build /src/target/release/garage-holdfast /src/target/release/kubectl-holdfast /usr/bin/
WORKDIR /
ENV PATH=/usr/bin
USER 65532:65532
ENTRYPOINT ["/usr/bin/garage-holdfast"]
