# The agent. NVML is loaded at run time through cgo, so it needs a C library. Build from the repository's root:
#   docker build -f tools/compose/agent.Dockerfile .
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY agent agent
RUN CGO_ENABLED=1 go build -trimpath -ldflags="-s -w" -o /leasehold-agent ./agent/cmd/leasehold-agent
RUN mkdir /empty

FROM gcr.io/distroless/base-debian12:nonroot
COPY --from=build /leasehold-agent /usr/bin/leasehold-agent
# A named volume takes its owner from the directory that it covers.
COPY --from=build --chown=65532:65532 /empty /var/lib/leasehold-site
ENTRYPOINT ["/usr/bin/leasehold-agent"]
CMD ["sim"]
