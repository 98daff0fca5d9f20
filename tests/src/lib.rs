//! The test bed and the suites that run on it.
