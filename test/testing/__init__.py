"""What tests share, imported as ``testing.<name>``. A test module imports none of the others: test/overlay/test_tests.py."""
