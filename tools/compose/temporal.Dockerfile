# One Temporal server with its web interface, on PostgreSQL. Build from the repository's root:
#   docker build -f tools/compose/temporal.Dockerfile .
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY tools/temporald/go.mod tools/temporald/go.sum ./
RUN go mod download
COPY tools/temporald ./
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /temporald .

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /temporald /usr/bin/temporald
EXPOSE 7233 8233
ENTRYPOINT ["/usr/bin/temporald"]
