//! What the three request annotations say, and why a value says nothing (rule V1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{InvalidId, KubernetesNodeName, NodeId, Pair, PoolName, Quoted};

/// Longest `verify-redundancy` token, in characters.
pub const REQUEST_TOKEN_MAX: usize = 253;

/// Why an annotation's value is refused. The text names the rule and the value, and says how to write it; who shows it puts
/// the annotation's name before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// Present, but empty.
    #[error("the value is empty: write {form}, or remove the annotation")]
    Empty {
        /// How a value is written.
        form: &'static str,
    },
    /// White space around the value, most often the newline of a YAML block scalar.
    #[error("{} has {what} {place}: write {} on one line, without `|` or `>`", Quoted(.value), Quoted(.value.trim()))]
    SurroundingWhiteSpace {
        /// As it stands.
        value: String,
        /// `a newline` or `white space`.
        what: &'static str,
        /// `before it`, `after it`, `around it`.
        place: &'static str,
    },
    /// Not the right number of segments, or an empty one.
    #[error("{} has {found} segments{}, not {expected}: write {form}", Quoted(.value), if *.empty { " of which one is empty" } else { "" })]
    Segments {
        /// As it stands.
        value: String,
        /// How many it has.
        found: usize,
        /// How many it needs.
        expected: usize,
        /// Whether one of them is empty.
        empty: bool,
        /// How a value is written.
        form: &'static str,
    },
    /// A segment that is no pool, no Node or no identity.
    #[error("{} cannot be read: {reason}", Quoted(.value))]
    Segment {
        /// As it stands.
        value: String,
        /// What is wrong with the segment.
        reason: InvalidId,
    },
    /// A token that is too long.
    #[error(
        "the token has {length} characters, at most {REQUEST_TOKEN_MAX} are allowed: write a shorter one, for example a date"
    )]
    TooLong {
        /// Characters that it has.
        length: usize,
    },
}

const HOLD_FORM: &str = "pool/kubernetes-node";
const REPLACE_FORM: &str = "pool/kubernetes-node/old-64-hex-id";

/// Splits into exactly `N` non-empty segments, after the rules that both requests share.
fn segments<'a, const N: usize>(value: &'a str, form: &'static str) -> Result<[&'a str; N], InvalidRequest> {
    if value.is_empty() {
        return Err(InvalidRequest::Empty { form });
    }
    let trimmed = value.trim();
    if trimmed != value {
        let (before, after) = (!value.starts_with(trimmed), !value.ends_with(trimmed));
        return Err(InvalidRequest::SurroundingWhiteSpace {
            value: value.to_owned(),
            what: if value.contains(['\n', '\r']) { "a newline" } else { "white space" },
            place: match (before, after) {
                (true, true) => "around it",
                (true, false) => "before it",
                _ => "after it",
            },
        });
    }
    let parts: Vec<&str> = value.split('/').collect();
    let empty = parts.iter().any(|p| p.is_empty());
    let found = parts.len();
    <[&str; N]>::try_from(parts).ok().filter(|_| !empty).ok_or_else(|| InvalidRequest::Segments {
        value: value.to_owned(),
        found,
        expected: N,
        empty,
        form,
    })
}

fn pair(value: &str, pool: &str, node: &str) -> Result<Pair, InvalidRequest> {
    let segment = |reason| InvalidRequest::Segment { value: value.to_owned(), reason };
    Ok(Pair {
        pool: pool.parse::<PoolName>().map_err(segment)?,
        node: node.parse::<KubernetesNodeName>().map_err(segment)?,
    })
}

/// Value of `node-local-out-of-service`: the pair to hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HoldRequest(pub Pair);

impl FromStr for HoldRequest {
    type Err = InvalidRequest;
    fn from_str(value: &str) -> Result<Self, Self::Err> {
        let [pool, node] = segments::<2>(value, HOLD_FORM)?;
        pair(value, pool, node).map(Self)
    }
}

impl fmt::Display for HoldRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Value of `node-local-replace-identity`: the pair, and the one identity that may go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplaceRequest {
    /// Which member.
    pub pair: Pair,
    /// Which identity of it.
    pub old_node_id: NodeId,
}

impl FromStr for ReplaceRequest {
    type Err = InvalidRequest;
    fn from_str(value: &str) -> Result<Self, Self::Err> {
        let [pool, node, id] = segments::<3>(value, REPLACE_FORM)?;
        Ok(Self {
            pair: pair(value, pool, node)?,
            old_node_id: id
                .parse()
                .map_err(|reason| InvalidRequest::Segment { value: value.to_owned(), reason })?,
        })
    }
}

impl fmt::Display for ReplaceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pair, self.old_node_id)
    }
}

/// Value of `verify-redundancy`: any token of 1 to 253 characters. It is compared byte for byte and never interpreted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestToken(String);

impl RequestToken {
    /// Reads the annotation: an empty value is ignored (section 3), a too long one refused.
    pub fn parse(value: &str) -> Result<Option<Self>, InvalidRequest> {
        let length = value.chars().count();
        match length {
            0 => Ok(None),
            1..=REQUEST_TOKEN_MAX => Ok(Some(Self(value.to_owned()))),
            _ => Err(InvalidRequest::TooLong { length }),
        }
    }

    /// The token.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn hold(value: &str) -> String {
        value.parse::<HoldRequest>().unwrap_err().to_string()
    }

    #[test]
    fn an_empty_value_is_refused_and_says_what_to_write() {
        assert_eq!(hold(""), "the value is empty: write pool/kubernetes-node, or remove the annotation");
        assert!(matches!("".parse::<ReplaceRequest>(), Err(InvalidRequest::Empty { .. })));
    }

    #[test]
    fn the_newline_of_a_block_scalar_is_refused_by_name() {
        assert_eq!(
            hold("fast/kn-1\n"),
            r#""fast/kn-1\n" has a newline after it: write "fast/kn-1" on one line, without `|` or `>`"#
        );
        assert!(hold(" fast/kn-1").contains("white space before it"));
        assert!(hold("\tfast/kn-1 ").contains("white space around it"));
        assert!(hold(" \n").contains("newline"));
    }

    #[test]
    fn segments_are_counted_and_none_is_empty() {
        assert_eq!(hold("fast"), r#""fast" has 1 segments, not 2: write pool/kubernetes-node"#);
        assert!(hold("fast/kn-1/0f").contains("3 segments"));
        assert!(hold("/kn-1").contains("one is empty"));
        assert!(hold("fast/").contains("one is empty"));
        assert!(matches!(
            "fast/kn-1".parse::<ReplaceRequest>(),
            Err(InvalidRequest::Segments { found: 2, .. })
        ));
        assert!(matches!(
            "fast//0f".parse::<ReplaceRequest>(),
            Err(InvalidRequest::Segments { empty: true, .. })
        ));
    }

    #[test]
    fn inner_white_space_and_capitals_are_no_names() {
        assert!(hold("fast /kn-1").contains("a pool name is a DNS label"));
        assert!(hold("fast/KN-1").contains("a Kubernetes Node name is a DNS subdomain"));
        assert!(hold("a.b/kn-1").contains("a pool name is a DNS label"));
    }

    #[test]
    fn an_identity_is_64_hexadecimal_characters_of_either_case() {
        let upper: ReplaceRequest = format!("fast/kn-1.example/{}", "0F".repeat(32)).parse().unwrap();
        assert_eq!(upper.to_string(), format!("fast/kn-1.example/{}", "0f".repeat(32)));
        for bad in ["0f".repeat(31), "0g".repeat(32), format!("{}é", "0f".repeat(31))] {
            let text = format!("fast/kn-1/{bad}").parse::<ReplaceRequest>().unwrap_err().to_string();
            assert!(text.contains("64 hexadecimal characters"), "{text}");
        }
    }

    #[test]
    fn a_token_may_have_253_characters_and_an_empty_one_is_ignored() {
        assert_eq!(RequestToken::parse("").unwrap(), None);
        assert!(RequestToken::parse(&"é".repeat(253)).unwrap().is_some());
        assert_eq!(RequestToken::parse(&"x".repeat(254)), Err(InvalidRequest::TooLong { length: 254 }));
    }

    proptest! {
        #[test]
        fn every_valid_hold_reads_back_as_it_was_written(pool in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", node in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]{1,9}){0,3}") {
            let text = format!("{pool}/{node}");
            prop_assert_eq!(text.parse::<HoldRequest>().unwrap().to_string(), text);
        }

        #[test]
        fn no_value_at_all_makes_a_parser_fail_otherwise_than_by_a_short_refusal(value in "\\PC*|[ \\n\\t]*[a-z/]*[ \\n]*") {
            for refusal in [
                value.parse::<HoldRequest>().err(),
                value.parse::<ReplaceRequest>().err(),
                RequestToken::parse(&value).err(),
            ].into_iter().flatten() {
                let text = refusal.to_string();
                prop_assert!(text.chars().count() < 900 && !text.contains('\n'), "{}", text);
            }
        }

        #[test]
        fn what_is_accepted_has_no_white_space(value in "[a-z ]{0,3}/[a-z \\n]{1,4}") {
            if value.parse::<HoldRequest>().is_ok() {
                prop_assert!(!value.contains(char::is_whitespace));
            }
        }

        #[test]
        fn a_node_id_reads_in_either_case_and_is_shown_in_lower_case(bytes in any::<[u8; 32]>()) {
            let id = NodeId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().to_uppercase().parse::<NodeId>().unwrap(), id);
            prop_assert_eq!(id.to_string(), hex::encode(bytes));
        }
    }
}
