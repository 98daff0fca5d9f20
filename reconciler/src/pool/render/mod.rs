//! What a pool consists of, rendered exactly as `compat.md` 1 and 3 have it, so that the full operator
//! can take a site over or hand it over.

pub mod config;
pub mod garage_toml;
pub mod labels;
pub mod services;
pub mod toml;
pub mod workload;
