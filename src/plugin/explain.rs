//! `explain`: the table of reasons, one at a time.

use std::fmt::Write as _;

use holdfast_crds::explain::{Explanation, TABLE, Urgency, condition_meaning, find};

use crate::style::{Cell, Style, columns};

/// Explains a reason, every reason of a condition, or lists all.
pub fn text(word: Option<&str>, style: Style) -> Result<String, String> {
    let Some(word) = word else { return Ok(list(TABLE, style)) };
    let found = find(word);
    let Some(first) = found.first().copied() else { return Err(unknown(word)) };
    if first.condition.as_str().eq_ignore_ascii_case(word) {
        let entries: Vec<Explanation> = found.into_iter().copied().collect();
        let name = style.heading(first.condition.as_str());
        return Ok(format!("{name}: {}\n\n{}", condition_meaning(first.condition), list(&entries, style)));
    }
    let mut out = String::new();
    for (index, e) in found.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let reason = style.paint(Some(e.urgency), e.reason);
        let _ = writeln!(out, "{} {}={}", reason, e.condition, e.status);
        let _ = writeln!(out, "  what it means: {}", e.meaning);
        let _ = writeln!(out, "  what to do:    {}", e.next);
    }
    Ok(out)
}

fn list(entries: &[Explanation], style: Style) -> String {
    let mut rows = vec![["CONDITION", "STATUS", "REASON", "YOU"].map(Cell::from).to_vec()];
    rows.extend(entries.iter().map(|e| {
        vec![
            e.condition.as_str().into(),
            e.status.into(),
            Cell(e.reason.to_owned(), Some(e.urgency)),
            match e.urgency {
                Urgency::Good | Urgency::Working => "nothing",
                Urgency::Waiting => "wait, or mend what it names",
                Urgency::Act => "act",
            }
            .into(),
        ]
    }));
    columns(&rows, "", style)
}

fn unknown(word: &str) -> String {
    let lower = word.to_lowercase();
    let mut near: Vec<&str> =
        TABLE.iter().map(|e| e.reason).filter(|r| r.to_lowercase().contains(&lower)).collect();
    near.dedup();
    near.truncate(5);
    let hint = if near.is_empty() {
        "`kubectl holdfast explain` lists them all".to_owned()
    } else {
        format!("did you mean {}?", near.join(", "))
    };
    format!(
        "{:?} is no reason and no condition of this release; {hint}",
        word.chars().take(64).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reason_is_explained_for_every_condition_that_has_it() {
        let text = text(Some("refused"), Style::PLAIN).unwrap();
        assert!(text.contains("Refused NodeLocalOutOfService=False"), "{text}");
        assert!(text.contains("Refused NodeLocalIdentityReplaced=False"), "{text}");
        assert_eq!(text.matches("what to do:").count(), 2);
    }

    #[test]
    fn a_condition_lists_its_reasons_and_no_word_lists_all() {
        let one = text(Some("FullyReplicated"), Style::PLAIN).unwrap();
        assert!(one.contains("Stalled") && !one.contains("SafeToService"), "{one}");
        assert_eq!(text(None, Style::PLAIN).unwrap().lines().count(), TABLE.len() + 1);
    }

    #[test]
    fn an_unknown_word_gets_the_nearest_or_the_way_to_the_list() {
        assert!(text(Some("stall"), Style::PLAIN).unwrap_err().contains("did you mean Stalled?"));
        assert!(text(Some("xyzzy"), Style::PLAIN).unwrap_err().contains("lists them all"));
    }
}
