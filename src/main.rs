//! `garage-holdfast`: command line, configuration, wiring and supervision. No rules live here.

fn main() {}
