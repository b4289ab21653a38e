# make demo   a real search over real distributed training on this machine, ending in a report
# make test   the quick tests, on a real Slurm of this machine's own where it may be installed
# make docs   the pages of docs/ as a searchable site, build/site/index.html; needs no network to read
# make test-cpus   the trainer's tests of numbers and memory as on CPUs without AVX-512, or AVX2
# All set up what they need in .venv and can be run again at any time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# Where to find PyTorch without CUDA, if the configured package index does not have it
# (pytorch.org, "Get Started", names the index): make demo TORCH_INDEX=URL
TORCH_INDEX ?=
export OMP_NUM_THREADS ?= 1
# Processes that `make test` shares files of tests out to: many tests wait, for Slurm or for ranks.
WORKERS ?= 4
# Or each of the many processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# What libraries can be told to do as on other CPUs: with no vector instructions beyond SSE and
# results that are the same on each x86, then as where AVX2 is all there is.
OTHER_CPUS := \
  "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41" \
  "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2"
ON_OTHER_CPUS := tests/trainer/test_exactness.py tests/trainer/deepspeed/test_engine.py \
  tests/trainer/test_main.py tests/trainer/model tests/trainer/quantization

.PHONY: demo test test-all test-cpus lint docs slurm pyxis browser older-torch clean

demo: $(VENV)/.installed
	$(BIN)/meshtune search tiny_cpu

test: $(VENV)/.installed-dev slurm pyxis browser older-torch
	$(BIN)/python -m pytest -m "not heavy" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST)

test-all: $(VENV)/.installed-dev slurm pyxis browser older-torch
	$(BIN)/python -m pytest $(PYTEST)

test-cpus: $(VENV)/.installed-dev
	for cpu in $(OTHER_CPUS); do echo "$$cpu"; \
	  env $$cpu $(BIN)/python -m pytest -m "not heavy" $(ON_OTHER_CPUS) $(PYTEST) || exit 1; done

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p meshtune -p workflows -p slurm -p analysis -p search_spaces -p trainer -p foundation

# Strict: a broken link or a page that none leads to fails.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

# ---- setting up ----

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "meshtune needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "installing python3-venv"; $(AS_ROOT) apt-get install -qq -y python3-venv >/dev/null; } || \
	  { echo "$(PYTHON) has no venv: install python3-venv, or name conda's: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A machine without a GPU gets PyTorch's CPU build, which spares gigabytes of CUDA packages.
$(VENV)/.torch: $(BIN)/python constraints.txt
	@echo "installing PyTorch $(TORCH)"
	@if [ -e /dev/nvidiactl ] || [ -e /dev/kfd ] || [ "$$(uname -m)" != x86_64 ]; then \
	  $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH); \
	elif [ -n "$(TORCH_INDEX)" ]; then \
	  $(PIP) --extra-index-url $(TORCH_INDEX) torch==$(TORCH)+cpu; \
	elif ! $(PIP) torch==$(TORCH)+cpu 2>/dev/null; then \
	  echo "no CPU build of PyTorch in the package index: installing the one with CUDA, which is"; \
	  echo "gigabytes. To avoid it: make $(MAKECMDGOALS) TORCH_INDEX=<the CPU index of pytorch.org>"; \
	  $(PIP) torch==$(TORCH); \
	fi
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "installing meshtune"
	@$(PIP) -c constraints.txt -e '.[trainer]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the test tools"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing the site's tools"
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

# Slurm's daemons, Open MPI and strace, which fails system calls, are the distribution's; without the right to install them the
# tests that need them are skipped, and say so (in CI they fail instead).
AS_ROOT := $(shell if [ "$$(id -u)" = 0 ]; then echo env; else echo sudo -n; fi)
SLURM_PACKAGES := slurmctld slurmd slurm-client munge openmpi-bin strace
BROWSER_PACKAGES := chromium chromium-driver

slurm:
	@if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && \
	  command -v munged >/dev/null && command -v mpiexec >/dev/null && \
	  command -v strace >/dev/null; then :; \
	elif command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
	  echo "installing Slurm, Open MPI and strace from the distribution: $(SLURM_PACKAGES)"; \
	  $(AS_ROOT) apt-get update -qq && \
	  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $(SLURM_PACKAGES) >/dev/null \
	    || echo "could not install them: the tests that need them will be skipped"; \
	else \
	  echo "no right to install Slurm, Open MPI and strace: their tests will be skipped"; \
	fi

# Containers are tested with pyxis and enroot where their sources are at hand, and Apptainer's line with
# bubblewrap in its place: make test PYXIS_SOURCES=FOLDER, which has pyxis-*.tar.gz and enroot-*.tar.gz
PYXIS_SOURCES ?=
PYXIS := $(abspath $(VENV))/pyxis
PYXIS_PACKAGES := bubblewrap libslurm-dev libbsd-dev jq parallel squashfs-tools zstd gcc make

pyxis: slurm
	@if [ -f $(PYXIS)/plugstack.conf ]; then :; \
	elif [ -z "$(PYXIS_SOURCES)" ]; then \
	  echo "no PYXIS_SOURCES: the tests of containers by pyxis will be skipped"; \
	else \
	  echo "building pyxis and enroot; from the distribution: $(PYXIS_PACKAGES)"; \
	  rm -rf $(PYXIS) && mkdir -p $(PYXIS)/src && \
	  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $(PYXIS_PACKAGES) >/dev/null && \
	  for each in $(PYXIS_SOURCES)/*.tar.gz; do tar -xzf $$each -C $(PYXIS)/src || exit 1; done && \
	  sh tests/support/build_pyxis.sh $(PYXIS)/src/pyxis $(PYXIS)/src/enroot $(PYXIS) 2>/dev/null \
	    || { rm -rf $(PYXIS); echo "could not build them: their tests will be skipped"; }; \
	fi

# The report's page is tested in a real browser, where there is one or it may be installed.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
	  echo "installing a browser from the distribution: $(BROWSER_PACKAGES)"; \
	  $(AS_ROOT) apt-get update -qq && \
	  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    $(BROWSER_PACKAGES) >/dev/null \
	    || echo "could not install it: the tests of the page in a browser will be skipped"; \
	else \
	  echo "no right to install a browser: the tests of the page in one will be skipped"; \
	fi

# Searches are tested beside the distribution's PyTorch as well, which is years older than ours. Its
# packages are unpacked without being installed.
OLDER := $(VENV)/older-torch
older-torch: $(BIN)/python
	@if [ -d $(OLDER) ]; then :; elif command -v apt-get >/dev/null; then \
	  echo "unpacking the distribution's PyTorch"; \
	  apt-cache show python3-torch >/dev/null 2>&1 || $(AS_ROOT) apt-get update -qq; \
	  rm -rf $(OLDER).new && mkdir -p $(OLDER).new/debs && cd $(OLDER).new/debs && \
	  apt-get download -qq $$(apt-get install -s --no-install-recommends python3-torch | \
	    awk '/^Inst (lib|python3-torch)/ && !/libtorch-test/ {print $$2}') 2>/dev/null && \
	  (for each in *.deb; do dpkg-deb -x $$each .. || exit 1; done) && \
	  cd .. && rm -r debs && mv ../older-torch.new ../older-torch || \
	  echo "there is none: the tests beside it will be skipped"; \
	else \
	  echo "no apt-get, so no older PyTorch: the tests beside it will be skipped"; \
	fi

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
