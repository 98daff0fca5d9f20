//! Subcommands that need no cluster: files in, text out.

pub mod convert;
pub mod lint;
