# Everything runs in a virtual environment that the targets create: no other set-up is needed than
# Python 3.11 or later, its headers, make and a C compiler.

PYTHON ?= python3
VENV ?= .venv
# Tests run on all cores; `make test PYTEST_ARGS="-x -k exact"` overrides.
PYTEST_ARGS ?= -n auto

python := $(abspath $(VENV))/bin/python
specfit := $(abspath $(VENV))/bin/specfit
install := $(python) -m pip install --quiet --disable-pip-version-check -c constraints.txt
kernel_sources := setup.py pyproject.toml constraints.txt \
	$(wildcard $(addprefix specfit_opt/kernel/*.,pyx pxd pxi h))

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench check-bounds sanitize clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

demo: $(VENV)/.with-demo  ## policies side by side on the shipped model, and a solved draft tree
	$(specfit) demo

test: lint  ## lint, type check and the test suite, with the compiled kernel
	SPECFIT_KERNEL=cython $(python) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.with-test  ## ruff and mypy
	$(python) -m ruff check .
	$(python) -m mypy

docs: $(VENV)/.with-docs  ## the documentation, in docs/_build/html; a warning is an error
	$(python) -m sphinx -W --keep-going -b html docs docs/_build/html

# asv does not run before it has noted what the machine is, which it does in the home directory and
# nowhere else; so it gets one of its own.
asv = HOME="$(CURDIR)/.asv" $(python) -m asv

bench: $(VENV)/.with-bench  ## every benchmark once, in this environment
	@mkdir -p .asv
	$(asv) machine --yes
	$(asv) check -E existing:$(python)
	$(asv) run -E existing:$(python) --quick --dry-run --show-stderr

# The two targets below build the kernel in a copy of the checkout, so that the normal build stays as
# it is, and put that copy first on the path. Tests that read the optional folder beside the checkout
# find it beside the copy too.
check-bounds: copy := $(CURDIR)/build/checked
check-bounds: $(VENV)/.with-test  ## the tests on a kernel that checks every index
	$(call copy_and_build,SPECFIT_BUILD_CHECKED=1)
	$(call test_copy,,)

# libstdc++ is preloaded as well: the sanitizer looks up its exception hooks at start. The interpreter
# leaks by design, and a test asks for more memory than there is. Dask's worker processes hang when
# the sanitizer is preloaded into them; its workers in threads are tested.
sanitizers = LD_PRELOAD="$(shell gcc -print-file-name=libasan.so) \
	$(shell gcc -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

sanitize: copy := $(CURDIR)/build/sanitized
sanitize: $(VENV)/.with-test  ## the tests on a kernel under the address and UB sanitizers
	$(call copy_and_build,SPECFIT_BUILD_SANITIZE=1)
	$(call test_copy,$(sanitizers),-k "not (dask_cluster and processes)")

define copy_and_build
rm -rf $(copy)
mkdir -p $(copy)
tar -c --exclude=./build --exclude=./.?* --exclude=./docs/_build --exclude='*.so' --exclude=_kernel.c . \
	| tar -x -C $(copy)
cd $(copy) && $(1) $(python) setup.py --quiet build_ext --inplace
if [ -d ../shared ]; then ln -sfn $(abspath ../shared) build/shared; fi
endef

define test_copy
cd $(copy) && export PYTHONPATH=$(copy) SPECFIT_KERNEL=cython $(1) \
	&& $(python) -c 'import sys; from specfit_opt.kernel import _kernel as k; \
	print("testing", k.__file__); sys.exit(not k.__file__.startswith(sys.argv[1]))' $(copy) \
	&& $(python) -m pytest $(PYTEST_ARGS) $(2) tests
endef

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) build dist docs/_build specfit.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -f specfit_opt/kernel/*.so specfit_opt/kernel/_kernel.c

# Set-up. Each step leaves a stamp in the environment, so that it runs again only when something that
# it depends on has changed.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "specfit needs Python 3.11 or later; $(PYTHON) is not (or not there)." >&2; \
		echo "Choose another: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed: is the module complete?" >&2; \
		echo "On Debian and Ubuntu: apt-get install python3-venv python3-dev gcc" >&2; exit 1; }
	@touch $@

# The build tools are pinned too, hence no build isolation: it would fetch the newest ones.
$(VENV)/.with-kernel: $(VENV)/.created $(kernel_sources)
	@$(python) -c 'import os, sys, sysconfig; \
		sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
		echo "The headers of Python are missing, and the kernel is compiled." >&2; \
		echo "On Debian and Ubuntu: apt-get install python3-dev gcc" >&2; exit 1; }
	$(install) setuptools wheel cython
	$(install) --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

# specfit itself is installed by now, so this adds only what the extras name.
$(VENV)/.with-demo: $(VENV)/.with-kernel
	$(install) 'specfit[cli,runtime]'
	@touch $@

$(VENV)/.with-test $(VENV)/.with-docs $(VENV)/.with-bench: $(VENV)/.with-%: $(VENV)/.with-kernel
	$(install) 'specfit[$*]'
	@touch $@
