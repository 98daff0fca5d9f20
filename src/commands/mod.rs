//! Subcommands that need no leader: they print and end.

pub mod convert;
pub mod crds;
pub mod lint;
pub mod live;
