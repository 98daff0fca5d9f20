//! The admission cases, judged by the rules alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::convert::Version;
use holdfast_crds::validate::{MAX_MESSAGE, Rule};

#[path = "../../tests/src/admission_cases.rs"]
#[allow(dead_code, reason = "the other half talks to an API server")]
mod admission_cases;

#[path = "../../tests/tests/admission/verdict.rs"]
mod verdict;

use admission_cases::{Case, Outcome, load};
use verdict::verdict;

fn report(failures: &[String]) {
    assert!(failures.is_empty(), "{} cases differ:\n{}", failures.len(), failures.join("\n"));
}

/// What differs from what the case expects.
fn judge(case: &Case, seen_as: Option<Version>) -> Option<String> {
    let verdict = verdict(case, seen_as, None);
    let undecided = verdict.refusal.as_ref().is_some_and(|r| r.undecided);
    if undecided != case.expect.undecided {
        return Some(format!("{}: undecided={undecided}", case.name));
    }
    let outcome = Outcome {
        allowed: verdict.allowed(),
        rule: verdict.rule().map(|r| r.id().to_owned()),
        message: verdict.message().to_owned(),
        warnings: verdict.warnings,
    };
    case.differs(&outcome).map(|d| format!("{}: {d}", case.name))
}

#[test]
fn every_case_gets_its_verdict() {
    let cases = load().unwrap();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    report(&cases.iter().filter_map(|c| judge(c, None)).collect::<Vec<_>>());
}

#[test]
fn a_v1beta1_request_gets_the_same_verdict_when_the_webhook_sees_it_as_v1beta2() {
    let cases = load().unwrap();
    let through_v1beta1 = cases.iter().filter(|c| c.version == "v1beta1" && !c.is_node() && !c.native);
    let failures: Vec<_> = through_v1beta1
        .filter_map(|c| {
            // The message speaks of tiers then, not of annotations.
            let mut case = c.clone();
            case.expect.message = None;
            judge(&case, Some(Version::V1beta2))
        })
        .collect();
    report(&failures);
}

#[test]
fn a_v1beta2_request_gets_the_same_verdict_when_the_webhook_sees_it_as_v1beta1() {
    let cases = load().unwrap();
    let failures: Vec<_> = cases
        .iter()
        .filter(|c| c.version == "v1beta2" && !c.is_node())
        // Which carriers a v1beta2 object has can no longer be seen in its converted view.
        .filter(|c| !c.name.starts_with("v12"))
        .filter_map(|c| judge(c, Some(Version::V1beta1)))
        .collect();
    report(&failures);
}

#[test]
fn every_rule_has_an_accepted_and_a_refused_case() {
    let mut refused: BTreeSet<String> = BTreeSet::new();
    let mut accepted: BTreeMap<String, usize> = BTreeMap::new();
    for case in load().unwrap() {
        let rule = case.name.split('-').next().unwrap().to_uppercase();
        if case.expect.allowed {
            *accepted.entry(rule).or_default() += 1;
        } else {
            refused.insert(case.expect.rule.expect("a refused case names its rule"));
        }
    }
    for rule in Rule::ALL {
        assert!(refused.contains(rule.id()), "no case is refused by {rule}");
        assert!(accepted.contains_key(rule.id()), "no case of {rule} is accepted");
    }
    for rule in ["V3", "V13"] {
        assert!(accepted.contains_key(rule), "no case of {rule}");
    }
}

/// V13.
#[test]
fn every_message_is_short_names_its_rule_and_stays_on_one_line() {
    for case in load().unwrap() {
        let verdict = verdict(&case, None, None);
        let Some(refusal) = &verdict.refusal else { continue };
        let message = &refusal.message;
        assert!(
            message.chars().count() <= MAX_MESSAGE && !message.contains('\n'),
            "{}: {message}",
            case.name
        );
        let start = format!("{} ({})", refusal.rule, refusal.rule.words());
        assert!(message.starts_with(&start), "{}: {message}", case.name);
        assert!(!message.ends_with('…'), "{}: cut: {message}", case.name);
    }
}
