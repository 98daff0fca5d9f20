//! The AdmissionReview envelope (`admission.k8s.io/v1`): read from bytes, judged, answered in bytes.
//!
//! The objects inside stay text until a rule wants a part of them. The `uid` is echoed also when the rest cannot
//! be read. A validating route never answers with a patch.

use std::borrow::Cow;

use holdfast_crds::ids::Quoted;
use holdfast_crds::validate::{
    self, Fact, Kind, Lookup, Operation, Request, Rule, Unreadable, Verdict, Version,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::Span;

use crate::lookup::Lookups;
use crate::{spans, uid};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    request: Option<ReviewRequest<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'a> {
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<GroupVersionKind<'a>>,
    #[serde(borrow)]
    request_kind: Option<GroupVersionKind<'a>>,
    #[serde(borrow)]
    sub_resource: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
    dry_run: Option<bool>,
}

#[derive(Default, Deserialize)]
struct GroupVersionKind<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow, default)]
    version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

/// Why a review could not be judged. Its text holds nothing of the objects.
#[derive(Debug, thiserror::Error)]
enum BadReview {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the review is not admission.k8s.io/v1 AdmissionReview; only that version is understood")]
    Version,
    #[error("the review has no {0}")]
    Lacks(&'static str),
    #[error("{} is no operation; CREATE, UPDATE, DELETE and CONNECT are", Quoted(.0))]
    Operation(String),
    #[error("this route judges {expected} of garage.rajsingh.info, not {}; correct the webhook configuration", Quoted(.found))]
    Kind { expected: &'static str, found: String },
    #[error("version {} of {kind} is not known here; {known}", Quoted(.found))]
    KindVersion { kind: &'static str, found: String, known: &'static str },
}

impl BadReview {
    /// For the log: what is wrong, without a word of the payload.
    fn label(&self) -> String {
        match self {
            Self::Unreadable(error) => error.to_string(),
            Self::Version => "another review version".to_owned(),
            Self::Lacks(what) => format!("the review has no {what}"),
            Self::Operation(_) => "an unknown operation".to_owned(),
            Self::Kind { expected, .. } => format!("another kind than {expected}"),
            Self::KindVersion { kind, .. } => format!("an unknown version of {kind}"),
        }
    }
}

/// An answered review, for logs and metrics.
#[derive(Debug)]
pub(crate) struct Judged {
    /// `allowed`, `refused`, `undecided` or `unreadable`.
    pub verdict: &'static str,
    /// The rule that refused, else empty.
    pub rule: &'static str,
}

/// The name of a kind in messages and metrics.
pub(crate) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::GarageCluster => "GarageCluster",
        Kind::GarageNode => "GarageNode",
    }
}

/// Judges the review in `body` and appends the answer to `out`; `span` is told whose it is. `None`: there is no `uid` to
/// answer to.
pub(crate) async fn answer(
    kind: Kind,
    body: &[u8],
    lookups: &dyn Lookups,
    out: &mut Vec<u8>,
    span: &Span,
) -> Option<Judged> {
    let review = std::str::from_utf8(body).ok().and_then(|text| {
        serde_json::from_str::<Review<'_>>(text).map_err(|e| Unreadable::from_json("the review", &e)).into()
    });
    let review = match review {
        Some(Ok(review)) => review,
        unreadable => {
            let uid = uid::recover(body)?;
            let error = match unreadable {
                Some(Err(error)) => error,
                _ => Unreadable::Json { what: "the review", syntax: true, line: 1, column: 1 },
            };
            return Some(refuse_unread(kind, &uid, &error.into(), out));
        }
    };
    let typed = review.api_version.as_deref() == Some("admission.k8s.io/v1")
        && review.kind.as_deref() == Some("AdmissionReview");
    let request = review.request?;
    let uid = request.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let cluster = (kind == Kind::GarageCluster).then_some(request.name.as_deref()).flatten();
    spans::whose(span, request.namespace.as_deref(), cluster);
    let judged = if typed { read(kind, &request) } else { Err(BadReview::Version) };
    let judged = match judged {
        Ok(judged) => judged,
        Err(error) => return Some(refuse_unread(kind, uid, &error, out)),
    };
    let verdict = validate::validate(&judged, &look_up(&judged, lookups).await);
    write(uid, &verdict, out);
    let judged = Judged {
        verdict: match &verdict.refusal {
            None => "allowed",
            Some(refusal) if refusal.undecided => "undecided",
            Some(_) => "refused",
        },
        rule: verdict.rule().map_or("", Rule::id),
    };
    log(kind, uid, &request, &judged);
    Some(judged)
}

fn log(kind: Kind, uid: &str, request: &ReviewRequest<'_>, judged: &Judged) {
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                kind = kind_name(kind),
                uid = %Quoted(uid),
                operation = request.operation.as_deref().unwrap_or_default(),
                namespace = %Quoted(request.namespace.as_deref().unwrap_or_default()),
                name = %Quoted(request.name.as_deref().unwrap_or_default()),
                dry_run = request.dry_run.unwrap_or_default(),
                verdict = judged.verdict,
                rule = judged.rule,
                "admission"
            )
        };
    }
    if judged.verdict == "allowed" { line!(debug) } else { line!(info) }
}

fn refuse_unread(kind: Kind, uid: &str, error: &BadReview, out: &mut Vec<u8>) -> Judged {
    tracing::warn!(kind = kind_name(kind), uid = %Quoted(uid), reason = error.label(), "an admission review cannot be judged");
    write_denied(uid, 400, "BadRequest", &error.to_string(), None, out);
    Judged { verdict: "unreadable", rule: "" }
}

/// The request inside a review. Which version is meant goes by `requestKind` (V12).
fn read<'a>(kind: Kind, request: &ReviewRequest<'a>) -> Result<Request<'a>, BadReview> {
    let operation = request.operation.as_deref().ok_or(BadReview::Lacks("request.operation"))?;
    let operation =
        Operation::from_word(operation).ok_or_else(|| BadReview::Operation(operation.to_owned()))?;
    let subresource = request.sub_resource.as_deref().unwrap_or_default();
    let object_kind = request.kind.as_ref().ok_or(BadReview::Lacks("request.kind"))?;
    let mut addressed = Version::V1beta1;
    if subresource != "scale" {
        let expected = kind_name(kind);
        for gvk in [Some(object_kind), request.request_kind.as_ref()].into_iter().flatten() {
            if gvk.group != "garage.rajsingh.info" || gvk.kind != expected {
                return Err(BadReview::Kind { expected, found: format!("{}/{}", gvk.group, gvk.kind) });
            }
        }
        let version = &request.request_kind.as_ref().unwrap_or(object_kind).version;
        addressed = match (kind, &**version) {
            (_, "v1beta1") => Version::V1beta1,
            (Kind::GarageCluster, "v1beta2") => Version::V1beta2,
            (Kind::GarageCluster, found) => {
                let known = "use v1beta1 or v1beta2";
                return Err(BadReview::KindVersion { kind: expected, found: found.to_owned(), known });
            }
            (Kind::GarageNode, found) => {
                let known = "use v1beta1";
                return Err(BadReview::KindVersion { kind: expected, found: found.to_owned(), known });
            }
        };
    }
    let text = |raw: Option<&'a RawValue>| raw.map(RawValue::get);
    Ok(Request::from_json(
        kind,
        operation,
        addressed,
        subresource,
        text(request.old_object),
        text(request.object),
    )?)
}

/// Fetches what the rules will ask for; most requests need nothing.
async fn look_up(request: &Request<'_>, lookups: &dyn Lookups) -> Lookup {
    let needs = validate::needs(request);
    let mut lookup = Lookup::default();
    if let Some((namespace, cluster)) = needs.members {
        lookup.members = lookups.members(namespace, cluster);
    }
    if let Some((namespace, name)) = needs.parent {
        lookup.parent = lookups.parent(namespace, name).await;
    }
    lookup
}

fn write(uid: &str, verdict: &Verdict, out: &mut Vec<u8>) {
    if let Some(refusal) = &verdict.refusal {
        let (code, reason) = if refusal.undecided { (503, "ServiceUnavailable") } else { (403, "Forbidden") };
        write_denied(uid, code, reason, &refusal.message, Some(refusal.rule), out);
        return;
    }
    begin(uid, out);
    out.extend_from_slice(br#","allowed":true"#);
    if !verdict.warnings.is_empty() {
        out.extend_from_slice(br#","warnings":["#);
        for (i, warning) in verdict.warnings.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            string(warning, out);
        }
        out.push(b']');
    }
    out.extend_from_slice(b"}}");
}

fn write_denied(uid: &str, code: u16, reason: &str, message: &str, rule: Option<Rule>, out: &mut Vec<u8>) {
    begin(uid, out);
    out.extend_from_slice(br#","allowed":false,"status":{"metadata":{},"status":"Failure","message":"#);
    string(message, out);
    out.extend_from_slice(format!(r#","reason":"{reason}","code":{code}}}"#).as_bytes());
    if let Some(rule) = rule {
        out.extend_from_slice(format!(r#","auditAnnotations":{{"rule":"{}"}}"#, rule.id()).as_bytes());
    }
    out.extend_from_slice(b"}}");
}

fn begin(uid: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(
        br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"#,
    );
    string(uid, out);
}

/// Appends a JSON string.
fn string(text: &str, out: &mut Vec<u8>) {
    // Writing a string to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// A lookup that knows nothing: every rule that needs a fact refuses. For tests and for a server without caches.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLookups;

impl Lookups for NoLookups {
    fn members(&self, _: &str, _: &str) -> Fact<Vec<validate::Member>> {
        Fact::default()
    }

    fn parent<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
    ) -> futures::future::BoxFuture<'a, Fact<Option<validate::Parent>>> {
        Box::pin(std::future::ready(Fact::default()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn review() -> String {
        let object = json!({"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
            "metadata": {"name": "a", "namespace": "b", "annotations": {
                "garage.rajsingh.info/node-local-out-of-service": "fast/kn-1",
                "garage.rajsingh.info/v1beta2-only": "other"}},
            "spec": {"replication": {"factor": 3}, "storage": {"nodeLocalPools": [{"name": "fast"}]}, "gateway": null},
            "status": {"nodeLocalService": {"pool": "fast", "phase": "Waiting"}}});
        let gvk = json!({"group": "garage.rajsingh.info", "version": "v1beta2", "kind": "GarageCluster"});
        let uid = "u-1";
        // `uid` first, as the API server writes it.
        format!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"{uid}","kind":{gvk},"requestKind":{gvk},"operation":"UPDATE","object":{object},"oldObject":{object}}}}}"#
        )
    }

    fn judge(body: &[u8]) -> Option<Value> {
        let mut out = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let judged = runtime.block_on(answer(Kind::GarageCluster, body, &NoLookups, &mut out, &Span::none()));
        assert_eq!(judged.is_none(), out.is_empty());
        judged.map(|_| serde_json::from_slice(&out).expect("the answer is JSON"))
    }

    #[test]
    fn the_review_of_these_tests_is_allowed() {
        assert_eq!(judge(review().as_bytes()).unwrap()["response"]["allowed"], true);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn bytes_that_are_damaged_get_an_envelope_with_the_uid_or_none(
            at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(), length in 0usize..40,
        ) {
            let mut body = review().into_bytes();
            let at = at.index(body.len());
            if cut {
                let end = (at + length).min(body.len());
                body.drain(at..end);
            } else {
                body[at] = byte;
            }
            if let Some(answer) = judge(&body) {
                let response = &answer["response"];
                prop_assert!(response["allowed"].is_boolean());
                prop_assert!(response["uid"].is_string());
                prop_assert!(response.get("patch").is_none());
            }
        }

        #[test]
        fn a_review_cut_off_after_its_uid_is_refused_by_that_uid(keep in any::<prop::sample::Index>()) {
            let whole = review();
            let from = whole.find("u-1").unwrap() + 4;
            let body = &whole.as_bytes()[..from + keep.index(whole.len() - from)];
            let answer = judge(body).unwrap();
            prop_assert_eq!(&answer["response"]["uid"], "u-1");
            prop_assert_eq!(&answer["response"]["allowed"], false);
        }

        #[test]
        fn any_bytes_at_all_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(judge(&body).is_none());
        }
    }
}
