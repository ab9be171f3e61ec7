# Everything a developer or a newcomer does. `make help` lists it.

cache := $(or $(LEASEHOLD_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leasehold)
pinned := go tool -modfile=tools/tools.mod
# After tools/setup: what the programs need to find what it fetched.
env := . $(cache)/env.sh
version := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
go_build := go build -ldflags="-X main.version=$(version)" -o bin/ ./backend/cmd/... ./agent/cmd/...
packages := $(wildcard backend agent workflows migrations tools)
# NODES of `make demo`: sim, or qemu for virtual bare metal that really boots.
NODES ?= sim
# FABRIC of `make demo`: sim, or opensm for a real subnet manager on a simulated fabric.
FABRIC ?= sim
ARGS ?=
# NVML's header marks many functions as deprecated; that is its authors' affair.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help run dev test lint generate bench e2e demo verify build portal setup clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## Start everything on this machine: database, Temporal, API, worker, portal, a simulated site (ARGS="--help")
	@$(env) && exec bin/leasehold dev $(ARGS)

dev: ## Start the same with the portal rebuilt on every change, on Vite's port
	@tools/setup base && tools/portal deps
	@$(env) && $(go_build)
	@$(env) && { (cd frontend && exec npm run --silent dev) & vite=$$!; trap 'kill $$vite' EXIT; bin/leasehold dev $(ARGS); }

test: ## Run every test, fetching what they need (RACE=1: with the race detector)
	@tools/test

lint: ## Check the dependency rule, correctness and style
	@tools/setup base && tools/portal deps
	$(pinned) golangci-lint run $(addsuffix /...,$(addprefix ./,$(packages)))
	$(pinned) golangci-lint fmt --diff $(packages)
	$(if $(wildcard workflows),$(pinned) workflowcheck ./workflows/...)
	cd tools/temporald && go vet .
	cd frontend && npm run --silent lint

generate: ## Write the generated code again from its sources
	go generate $(addsuffix /...,$(addprefix ./,$(packages)))
	@tools/portal deps
	cd frontend && npm run --silent generate

bench: ## Measure, each figure as a ratio on this machine (ARGS="booking search audit herd")
	@tools/setup base opensm
	@$(env) && $(go_build)
	@$(env) && go run ./backend/internal/bench $(ARGS)

e2e: build ## The main job in a real browser, against everything real but hardware
	@tools/setup chromium
	@$(env) && cd frontend && CHROMIUM=$$(command -v "$${LEASEHOLD_CHROMIUM:-chromium}") npm run --silent e2e

demo: build ## The main job from the command line: quote to wiped and invoiced (FABRIC=opensm: on a real subnet manager; NODES=qemu: bare metal that boots)
	@$(if $(filter opensm,$(FABRIC)),tools/setup opensm)
	@$(if $(filter qemu,$(NODES)),tools/metal)
	@$(if $(filter qemu,$(NODES)),go build -o bin/ ./tools/virtualsite)
	@$(env) && bin/leasehold demo --fabric=$(FABRIC) --nodes=$(NODES) $(ARGS)

verify: generate ## Fail if generated code differs from its sources
	@git diff --exit-code --stat || { echo "generated code is out of date: commit what 'make generate' wrote" >&2; exit 1; }
	@test -z "$$(git status --porcelain --untracked-files=normal)" || { git status --short; exit 1; }

build: setup portal ## Build the programs into bin/, with the portal inside
	@$(go_build)

portal: ## Build the portal, if its sources changed
	@tools/portal

setup: ## Check for Go and Node
	@tools/setup base

clean: ## Remove what was built here; the cache and the data of `make run` stay
	rm -rf bin build frontend/node_modules
	find frontend/dist -mindepth 1 ! -name .gitkeep -delete
