//! The generated page of the documentation is the one that the code makes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/reference.md");

#[test]
fn the_reference_page_is_up_to_date() {
    let page = holdfast_crds::reference::page().unwrap();
    if std::env::var_os("HOLDFAST_UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let stored = std::fs::read_to_string(PAGE).unwrap();
    assert!(
        stored == page,
        "docs/src/reference.md is not what the code says: run HOLDFAST_UPDATE=1 cargo test --workspace --test reference"
    );
}

#[test]
fn fields_that_are_never_populated_say_so() {
    let page = holdfast_crds::reference::page().unwrap();
    for field in
        ["status.lifecycleStatus", "status.totalNodes", "status.storedData", "status.repairInProgress"]
    {
        let line =
            page.lines().find(|l| l.contains(&format!("`{field}`"))).unwrap_or_else(|| panic!("{field}"));
        assert!(line.contains("never populated"), "{line}");
    }
}
