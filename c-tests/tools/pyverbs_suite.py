#!/usr/bin/python3
"""Runs rdma-core's tests of pyverbs, unmodified, and says what came of each: a line with the test's name, the outcome and, unless it
passed, the reason, with tabs between.

    pyverbs_suite.py FOLDER-OF-THE-TESTS ARGUMENTS-OF-THEIR-run_tests.py
"""

import importlib.util
import os
import sys
import unittest

folder = os.path.abspath(sys.argv[1])
sys.argv[1:] = sys.argv[2:]
sys.path.insert(0, folder)

# Frames need root with adapters of the kernel, and the tests ask who they are rather than whether they may. Ours needs no root.
os.geteuid = lambda: 0


class Lines(unittest.TestResult):
    """A line for each test."""

    def say(self, test, outcome, reason=""):
        words = reason.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", " ")
        print(test.id(), outcome, words, sep="\t", flush=True)

    def startTest(self, test):
        super().startTest(test)
        # Where the layer `validate` writes: whose fault is what follows.
        if "TOLD" in os.environ:
            with open(os.environ["TOLD"], "a") as told:
                print(f"test {test.id()}", file=told)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "failed", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "failed", self.errors[-1][1])

    def addSkip(self, test, reason):
        self.say(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.say(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.say(test, "failed", "was expected to fail")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            super().addSubTest(test, subtest, err)
            self.say(subtest, "failed", str(err[1]))


def load():
    """The tests' package, by the name that they know it by."""
    spec = importlib.util.spec_from_file_location(
        "tests", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    module = importlib.util.module_from_spec(spec)
    sys.modules["tests"] = module
    spec.loader.exec_module(module)
    return module


from args_parser import parser  # noqa: E402  (the tests' own)

tests = load()
parser.parse_args()


def chosen(suite):
    """The tests whose names begin with a word of the variable ONLY; all without it."""
    only = tuple(os.environ.get("ONLY", "").split())
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test)
        elif not only or test.id().startswith(only):
            yield test


unittest.TestSuite(chosen(unittest.defaultTestLoader.loadTestsFromModule(tests))).run(Lines())
print("done")
