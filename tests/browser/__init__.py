"""Pages in a real browser: `make test-browser`. Needs Chromium and its driver; `make test` does not
collect these files, whose names do not begin with `test_`."""
