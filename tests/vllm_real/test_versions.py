"""The check of vLLM's source finds in this version what the scheduler finds in the imported one."""

import vllm

from smartspec.vllm_plugin.check import installed_package, missing_members, version_of
from smartspec.vllm_plugin.compatibility import VERSIONS, version_problem


def test_this_version_has_what_is_needed():
    package = installed_package()
    assert package is not None and package.joinpath("__init__.py").samefile(vllm.__file__)
    assert version_of(package) == vllm.__version__
    assert not missing_members(package)
    assert version_problem(vllm.__version__) is None and VERSIONS[0] < VERSIONS[1]
