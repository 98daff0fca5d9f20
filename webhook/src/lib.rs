//! Admission and conversion webhook server.
