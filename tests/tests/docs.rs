//! The documentation: every relative link and anchor leads somewhere, in the sources and in the book that mdBook makes
//! of them, and every page is in the table of contents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_tests::bed::assets;
use holdfast_tests::chart::built;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn pages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("docs/src")).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    pages.sort();
    pages
}

/// Text without code, in which brackets are no links.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            out.extend(line.split('`').step_by(2).map(|part| format!("{part} ")));
            out.push('\n');
        }
    }
    out
}

fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose
        .match_indices("](")
        .filter_map(|(at, _)| prose[at + 2..].split(')').next().map(str::to_owned))
        .collect()
}

/// The anchors that mdBook gives to headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut out = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let id = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        out.insert(id.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    out
}

#[test]
fn every_relative_link_and_anchor_leads_somewhere() {
    let mut files = pages();
    files.extend([root().join("README.md"), root().join("CONTRIBUTING.md")]);
    let mut seen = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (path, anchor) = link.split_once('#').map_or((link.as_str(), None), |(p, a)| (p, Some(a)));
            let target = if path.is_empty() { file.clone() } else { file.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link} leads nowhere", file.display());
            if let Some(anchor) = anchor {
                let known = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(
                    known.contains(anchor),
                    "{}: {link}: no such heading; there are {known:?}",
                    file.display()
                );
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let summary = std::fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let listed = links(&summary);
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        if name != "SUMMARY.md" {
            assert_eq!(listed.iter().filter(|l| *l == name).count(), 1, "{name}");
        }
    }
}

/// Tables of the pages are tables: every row has as many cells as its head.
#[test]
fn every_row_of_a_table_has_the_cells_of_its_head() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut width = None;
        for line in text.lines() {
            if !line.starts_with('|') {
                width = None;
                continue;
            }
            let cells = line.replace("\\|", "").matches('|').count();
            assert_eq!(*width.get_or_insert(cells), cells, "{}: {line}", page.display());
        }
    }
}

/// What an attribute of the tags of a page says, each time: `href`, `id`.
fn attributes<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let start = format!(" {name}=\"");
    page.split(start.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn the_book_builds_without_a_warning_and_its_links_lead_somewhere() {
    let Some(mdbook) = built(assets::mdbook()).unwrap() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(mdbook)
        .args(["build", "--dest-dir"])
        .arg(folder.path())
        .arg(root().join("docs"))
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");

    let mut seen = 0;
    for page in pages().iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let page = folder.path().join(page.with_extension("html").file_name().unwrap());
        let text = std::fs::read_to_string(&page).unwrap();
        for link in attributes(&text, "href").into_iter().chain(attributes(&text, "src")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            seen += 1;
            let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if let Some(anchor) = anchor.filter(|anchor| !anchor.is_empty()) {
                let there = std::fs::read_to_string(&target).unwrap();
                assert!(
                    attributes(&there, "id").contains(&anchor),
                    "{}: {link}: no such place",
                    page.display()
                );
            }
        }
    }
    assert!(seen > 500, "{seen}");
}
