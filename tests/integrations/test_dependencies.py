"""Without the other libraries, the modules say what to install."""

import subprocess
import sys

import pytest


@pytest.mark.default("transformers-*", extended=[])
@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("transformers", "transformers", 'requires transformers; install it with: pip install "bayesify[transformers]"'),
        ("pretrained", "transformers", 'requires transformers; install it with: pip install "bayesify[transformers]"'),
        ("posterior_files", "safetensors", 'requires safetensors; install it with: pip install "bayesify[transformers]"'),
        ("lightning", "lightning", 'requires lightning; install it with: pip install "bayesify[train]"'),
    ],
)
def test_a_missing_library_is_named(module, missing, message):
    code = f"import sys; sys.modules[{missing!r}] = None; import bayesify.integrations.{module}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError" in result.stderr
    assert message in result.stderr
