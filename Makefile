# Everything a person runs. 'make demo' and 'make test' set up what they need
# on a Debian machine; 'make help' lists the rest.

GO   ?= go
ARGS ?=
DEMO ?=

FUZZTIME ?= 10m
PACKAGES ?= ./...

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0

# A package's time, which go test bounds at 10 minutes otherwise: what runs aside
# has what the lab leaves of the machine.
ASIDE_TIMEOUT = 20m

# Tests that need Linux guests, and so a KVM that runs them.
LAB_PACKAGES = ./kvm/... ./vmm/... ./api/template ./api/sandbox $(LAB_ASIDE)
LAB_ASIDE = ./cmd/...

# Makes requests of the description of the API.
SCHEMATHESIS = $${FORKVM_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/forkvm}/schemathesis-4.32.5/bin/schemathesis

# Checks disks there; it needs no libraries.
E2FSCK = /sbin/e2fsck.static

export CGO_ENABLED = 0

.PHONY: help build man setup kernel demo bench bench-page test lint unit race lab-test python-test soak fuzz vuln clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## bin/forkvm, bin/forkvm-agent and bin/lab
	@test -n "$(READY)" || $(GO) build -trimpath -ldflags '-s -w' -o bin/ ./cmd/forkvm ./guestagent/cmd/forkvm-agent ./test/lab

# Their date is that of the commit, so that they are the same wherever they are made.
man: build ## manual pages of the commands, in bin/man (man -M bin/man forkvm)
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} bin/forkvm man bin/man/man1

setup: build ## install the Debian packages that the tests need, fetch and build kernels
	@test -n "$(READY)" || sh test/setup.sh test

kernel: ## build the minimal guest kernel (about 4 minutes, once)
	@sh test/setup.sh kernel

# What DEMO=python forks: here where this machine's KVM runs Linux, and else on
# a disk of the lab's that is there in its place. Its test has a store of its own,
# with the same images of bases.
DEMO_TEMPLATES = $${FORKVM_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/forkvm}/demo-templates

demo: build ## boot a machine, fork it 8 times, show that each goes its own way (DEMO=python: run tests in forks of a template; DEMO=service: sandboxes of a server over HTTP)
ifeq ($(DEMO),python)
	@sh test/setup.sh python "$(DEMO_TEMPLATES)"
	@bin/lab run --disk "$(DEMO_TEMPLATES).ext4:$(DEMO_TEMPLATES)" --file $(CURDIR)/bin/forkvm-agent -- \
		bin/forkvm demo python --templates "$(DEMO_TEMPLATES)" $(ARGS)
else ifeq ($(DEMO),service)
	@sh test/service-demo.sh $(ARGS)
else
	@sh test/setup.sh demo
	@bin/lab run -- bin/forkvm demo $(ARGS)
endif

bench: setup ## forks, boots, restores, beside their floor, QEMU and gokvm (docs/benchmarks.md)
	@$(GO) build -trimpath -ldflags "-s -w -X main.commit=$$(git describe --always --dirty --abbrev=12)" -o bin/ ./test/bench
	@bin/bench all $(ARGS)

bench-page: ## docs/benchmarks.md and its plots, from test/bench/results
	@$(GO) run ./test/bench/page

# The lab is one thread of an emulator. So the rest runs at the same time, and
# where there is but one CPU gives way; then, in a lab of its own, what that one
# would take up last.
test: lint ## the whole suite
	@trap 'kill $$first $$aside; exit 143' HUP INT TERM; \
	$(MAKE) --no-print-directory READY=yes first & first=$$!; \
	$(MAKE) --no-print-directory READY=yes aside & aside=$$!; \
	wait $$first; failed=$$?; wait $$aside && exit $$failed

.PHONY: first aside bases
first:
	@$(MAKE) --no-print-directory lab-test LAB_PACKAGES="$(filter-out $(LAB_ASIDE),$(LAB_PACKAGES))"

aside: bases
	@nice -n 19 $(MAKE) --no-print-directory unit race
	@$(MAKE) --no-print-directory python-test
	@FORKVM_LAB_NAME=lab-aside $(MAKE) --no-print-directory lab-test LAB_PACKAGES="$(LAB_ASIDE)"

bases: build
	@nice -n 19 sh test/setup.sh python "$(DEMO_TEMPLATES)"

lint: setup ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@$(GO) vet ./...
	@$(GO) run $(STATICCHECK) ./...

unit: setup ## tests on this machine, micro-guests on its /dev/kvm included
	@FORKVM_REQUIRE_KERNEL=1 FORKVM_REQUIRE_LAB=1 FORKVM_REQUIRE_TOOLS=1 FORKVM_TEST_SCHEMATHESIS="$(SCHEMATHESIS)" $(GO) test -p 1 -timeout $(ASIDE_TIMEOUT) ./...

race: setup ## the same under the race detector, less the lab's own
	@CGO_ENABLED=1 $(GO) test -race -timeout $(ASIDE_TIMEOUT) $$($(GO) list ./... | grep -v /test/lab)

# The machine stays up for all packages; go test runs one at a time, for what
# waits for the machine would count against its time. TestJail is about processes
# of this host only. The shell waits in a way that a signal interrupts; ended by
# one it would not get to what it has for its exit.
lab-test: setup ## tests on a genuine KVM: this machine's, or the lab's
	@trap 'bin/lab down --now' EXIT; trap 'kill $$tests; exit 143' HUP INT TERM; bin/lab up >&2; \
	FORKVM_REQUIRE_KVM=1 FORKVM_TEST_AGENT=$(CURDIR)/bin/forkvm-agent FORKVM_TEST_E2FSCK=$(E2FSCK) $(GO) test -p 1 -timeout 20m -skip '^TestJail$$' \
		-exec "$(CURDIR)/bin/lab test --file $(CURDIR)/bin/forkvm-agent --file $(E2FSCK)" $(LAB_PACKAGES) & tests=$$!; wait $$tests

# A machine of its own, since the images are a disk of it, and a lab of its own,
# since the other one's may be up.
python-test: setup bases ## python, git, pip and pytest in forks of the python template, on a genuine KVM
	@bases="$(DEMO_TEMPLATES)/bases"; \
	FORKVM_LAB_NAME=lab-aside FORKVM_REQUIRE_KVM=1 FORKVM_REQUIRE_BASES=1 FORKVM_TEST_BASES="$$bases" FORKVM_TEST_AGENT=$(CURDIR)/bin/forkvm-agent $(GO) test -timeout 20m \
		-exec "$(CURDIR)/bin/lab test --tree $$bases --file $(CURDIR)/bin/forkvm-agent" -run '^TestLinuxPython$$' ./api/template

soak: build ## scenarios of many rounds in full, on this machine's KVM (Linux guests: FORKVM_TEST_KERNEL)
	@FORKVM_TEST_AGENT=$(CURDIR)/bin/forkvm-agent $(GO) test ./vmm -run TestScenarioSoak -scenario.full -timeout 3h -v $(ARGS)

# A minimized input is worth less than the time that looking for it takes.
fuzz: ## each fuzz target of PACKAGES (all) for FUZZTIME (10m)
	@set -e; for p in $$($(GO) list $(PACKAGES)); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$p $(ARGS); \
		done; \
	done

vuln: ## known vulnerabilities of the dependencies (needs the internet)
	@$(GO) run $(GOVULNCHECK) ./...

clean: ## remove what build made
	@rm -rf bin
