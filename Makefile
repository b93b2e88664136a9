# make run    install, then the main job: a sweep over prefetch coefficients on LongCat-Flash
# make test   install, then the tests
# make lint   install, then ruff and mypy
# make fuzz   install, then 100 000 mutated profiler files through the reader
# make setup  only the .venv and the install
# make coverage   docs/coverage.md: what works on every causal language model of the installed transformers (5 min)
# make front-end   the NPU compiler's front end for the graph rung, into .front_end, never into the .venv
# make PYTHON=/path/to/python ... takes that interpreter (3.11 or newer)

VENV := .venv
STAMP := $(VENV)/.installed
TRY := $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python

.PHONY: setup run test lint coverage fuzz front-end clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@found=; \
	for python in $(TRY); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        found=$$python; break; \
	    fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "npu-recipes needs Python 3.11 or newer (with venv); none of these is: $(TRY)" >&2; \
	    echo "Install one, or say where it is: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi; \
	echo "creating $(VENV) with $$("$$found" --version) ($$found)"; \
	"$$found" -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

run: $(STAMP)
	$(VENV)/bin/npu-recipes -m recipe=longcat_flash/decode_prefetch recipe.prefetch.coefficient=0.5,0.7,1.0

coverage: $(STAMP)
	$(VENV)/bin/python -m pipeline.coverage

front-end: $(STAMP)
	$(VENV)/bin/python -m pipeline.graph.fetch

test: $(STAMP)
	@$(VENV)/bin/python -m pipeline.graph.fetch || echo "without the front end the tests that need it are skipped" >&2
	$(VENV)/bin/python -m pytest -n 2

fuzz: $(STAMP)
	$(VENV)/bin/python -m tests.fuzz

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV)
