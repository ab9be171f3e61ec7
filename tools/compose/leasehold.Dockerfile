# The backend: API, worker and migrations in one binary, with the portal inside. Build from the repository's root:
#   docker build -f tools/compose/leasehold.Dockerfile .
FROM node:20-bookworm-slim AS portal
WORKDIR /src/frontend
COPY frontend/package.json frontend/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY frontend ./
RUN npm run build

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
COPY --from=portal /src/frontend/dist frontend/dist
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /leasehold ./backend/cmd/leasehold
RUN mkdir /empty

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /leasehold /usr/bin/leasehold
EXPOSE 8080
# A named volume takes its owner from the directory that it covers.
COPY --from=build --chown=65532:65532 /empty /var/lib/leasehold
COPY --from=build --chown=65532:65532 /empty /var/lib/leasehold-site
ENTRYPOINT ["/usr/bin/leasehold"]
CMD ["api"]
