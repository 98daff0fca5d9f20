//! The ConversionReview envelope (`apiextensions.k8s.io/v1`), read and answered on bytes.
//!
//! [`answer`] is what a server needs: one request body in, one response body out, order and count of the objects
//! kept (C6), `Failed` with the message of the first object that cannot be converted. The body is read once.

use super::raw::{Converter, Failed, check_text, string, write_string};
use super::scan::{ScanError, Scanner};
use super::{ConvertError, Problem, Version};
use crate::ids::Quoted;

/// A body that cannot be answered with a ConversionReview: it is not JSON, or there is no `uid` to answer to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a ConversionReview request: {0}")]
pub struct ReviewError(String);

/// What [`answer`] did, for metrics and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The request's `uid`, which the response repeats.
    pub uid: String,
    /// `request.desiredAPIVersion` as it was written (empty if it was not there).
    pub desired: String,
    /// How many objects the request had.
    pub objects: usize,
    /// Why the response is `Failed`; `None` is `Success`.
    pub failure: Option<Failure>,
}

/// Why a review was answered with `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The envelope has a `uid` but something else is wrong with it.
    #[error("{0}")]
    Envelope(String),
    /// One object could not be converted.
    #[error(transparent)]
    Object(#[from] ConvertError),
}

impl From<ScanError> for ReviewError {
    fn from(error: ScanError) -> Self {
        Self(Problem::from(error).to_string())
    }
}

/// Answers the review in `body`: appends the response's JSON to `out`. An error means that no response can be
/// written; `out` is then as it was.
pub fn answer(body: &[u8], out: &mut Vec<u8>) -> Result<Answered, ReviewError> {
    let start = out.len();
    let result = check_text(body).map_err(|p| ReviewError(p.to_string())).and_then(|()| {
        let mut review = Review::default();
        let mut scanner = Scanner::new(body);
        scanner.space();
        review.read(&mut scanner, out)?;
        if !scanner.at_end() {
            return Err(ScanError { at: scanner.pos, what: "text after the review" }.into());
        }
        review.finish(body, start, out)
    });
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Appends a `Failed` response for `uid`.
pub fn write_failed(uid: &str, message: &str, out: &mut Vec<u8>) {
    begin(uid, out);
    out.extend_from_slice(br#"],"result":{"status":"Failed","message":"#);
    write_string(out, message.as_bytes());
    out.extend_from_slice(b"}}}");
}

fn begin(uid: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(
        br#"{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{"uid":"#,
    );
    write_string(out, uid.as_bytes());
    out.extend_from_slice(br#","convertedObjects":["#);
}

/// What was read so far.
#[derive(Default)]
struct Review {
    kind: String,
    api_version: String,
    uid: String,
    desired: String,
    /// Where `objects` begins; converted as soon as `uid` and the version are known.
    objects_at: Option<usize>,
    converted: bool,
    objects: usize,
    failure: Option<ConvertError>,
    has_request: bool,
}

impl Review {
    fn read(&mut self, scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), ReviewError> {
        let mut has_response = false;
        scanner.object(|s, key| {
            match key.raw {
                b"kind" => self.kind = text(s, "kind")?,
                b"apiVersion" => self.api_version = text(s, "apiVersion")?,
                b"request" if self.has_request => return Err(ReviewError("request is given twice".into())),
                b"request" if s.peek() == b'{' => {
                    self.has_request = true;
                    self.read_request(s, out)?;
                }
                b"response" => {
                    has_response = true;
                    s.value()?;
                }
                _ => s.value()?,
            }
            Ok::<(), ReviewError>(())
        })?;
        if !self.has_request {
            let response = if has_response { ", only a response" } else { "" };
            return Err(ReviewError(format!("it has no request{response}")));
        }
        Ok(())
    }

    fn read_request(&mut self, scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), ReviewError> {
        scanner.object(|s, key| {
            match key.raw {
                b"uid" | b"desiredAPIVersion" => {
                    let uid = key.raw == b"uid";
                    let value = text(s, if uid { "request.uid" } else { "request.desiredAPIVersion" })?;
                    let field = if uid { &mut self.uid } else { &mut self.desired };
                    if !field.is_empty() && *field != value {
                        return Err(ReviewError(
                            "request.uid or request.desiredAPIVersion is given twice".into(),
                        ));
                    }
                    *field = value;
                }
                b"objects" if self.objects_at.is_some() => {
                    return Err(ReviewError("request.objects is given twice".into()));
                }
                b"objects" => {
                    self.objects_at = Some(s.pos);
                    match Version::from_api_version(&self.desired) {
                        Some(to) if !self.uid.is_empty() => self.convert(s, to, out)?,
                        _ => s.value()?,
                    }
                }
                _ => s.value()?,
            }
            Ok(())
        })
    }

    /// Converts the objects at the scanner's position, behind the head of the response.
    fn convert(
        &mut self,
        scanner: &mut Scanner<'_>,
        to: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), ReviewError> {
        self.converted = true;
        out.reserve(scanner.text().len() + scanner.text().len() / 16);
        begin(&self.uid, out);
        if scanner.peek() == b'n' {
            return Ok(scanner.value()?);
        }
        let mut converter = Converter::default();
        scanner.array(|s| {
            self.objects += 1;
            if self.failure.is_some() {
                return Ok(s.value()?);
            }
            if self.objects > 1 {
                out.push(b',');
            }
            match converter.convert_next(s, to, out) {
                Ok(()) => Ok(()),
                Err(Failed::Object(error)) => {
                    self.failure = Some(error);
                    Ok(())
                }
                Err(Failed::Text(error)) => Err(error.into()),
            }
        })
    }

    fn finish(mut self, body: &[u8], start: usize, out: &mut Vec<u8>) -> Result<Answered, ReviewError> {
        if self.uid.is_empty() {
            return Err(ReviewError("it has no request.uid".into()));
        }
        let mut failure = self.envelope_problem().map(Failure::Envelope);
        if failure.is_none() && !self.converted {
            match (Version::from_api_version(&self.desired), self.objects_at) {
                (None, _) => {
                    let problem = Problem::UnknownVersion(self.desired.clone());
                    failure = Some(Failure::Envelope(format!("request.desiredAPIVersion: {problem}")));
                }
                // The objects stood before the version: the rare second reading.
                (Some(to), Some(at)) => {
                    let mut scanner = Scanner::new(body);
                    scanner.pos = at;
                    self.convert(&mut scanner, to, out)?;
                }
                (Some(_), None) => begin(&self.uid, out),
            }
        }
        let failure = failure.or(self.failure.take().map(Failure::Object));
        match &failure {
            None => out.extend_from_slice(br#"],"result":{"status":"Success"}}}"#),
            Some(failure) => {
                out.truncate(start);
                write_failed(&self.uid, &failure.to_string(), out);
            }
        }
        Ok(Answered { uid: self.uid, desired: self.desired, objects: self.objects, failure })
    }

    fn envelope_problem(&self) -> Option<String> {
        if self.kind == "ConversionReview" && self.api_version == "apiextensions.k8s.io/v1" {
            return None;
        }
        Some(format!(
            "expected a ConversionReview of apiextensions.k8s.io/v1, found {} of {}",
            Quoted(&self.kind),
            Quoted(&self.api_version)
        ))
    }
}

/// A string or null of the envelope.
fn text(scanner: &mut Scanner<'_>, what: &str) -> Result<String, ReviewError> {
    let start = scanner.pos;
    scanner.value()?;
    let value = scanner.slice(start, scanner.pos);
    match string(value) {
        Some(text) => Ok(text.into_owned()),
        None if value == b"null" => Ok(String::new()),
        None => Err(ReviewError(format!("{what} is not a string"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::{Value, json};

    use super::*;

    const V1: &str = "garage.rajsingh.info/v1beta1";
    const V2: &str = "garage.rajsingh.info/v1beta2";

    fn object(i: usize) -> Value {
        json!({
            "apiVersion": V2, "kind": "GarageCluster",
            "metadata": {"name": format!("site-{i}"), "namespace": "objects", "uid": format!("uid-{i}")},
            "spec": {"storage": {"replicas": i}},
        })
    }

    fn review(desired: &str, objects: &[Value]) -> Value {
        json!({
            "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "request": {"uid": "705ab4f5", "desiredAPIVersion": desired, "objects": objects},
        })
    }

    #[track_caller]
    fn ask(review: &Value) -> (Answered, Value) {
        let mut out = b"kept ".to_vec();
        let answered = answer(review.to_string().as_bytes(), &mut out).unwrap();
        (answered, serde_json::from_slice(out.strip_prefix(b"kept ").unwrap()).unwrap())
    }

    #[track_caller]
    fn refused(body: &[u8], needle: &str) {
        let mut out = b"kept".to_vec();
        let error = answer(body, &mut out).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
        assert_eq!(out, b"kept");
    }

    #[test]
    fn objects_come_back_in_order_and_number_with_the_uid() {
        let objects: Vec<Value> = (0..500).map(object).collect();
        let (answered, response) = ask(&review(V1, &objects));
        assert_eq!((answered.objects, answered.failure), (500, None));
        assert_eq!(response["kind"], "ConversionReview");
        assert_eq!(response["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(response["response"]["uid"], "705ab4f5");
        assert_eq!(response["response"]["result"], json!({"status": "Success"}));
        for (i, converted) in response["response"]["convertedObjects"].as_array().unwrap().iter().enumerate()
        {
            assert_eq!(converted["metadata"], objects[i]["metadata"]);
            assert_eq!(converted["spec"], json!({"replicas": i}));
            assert_eq!(converted["apiVersion"], V1);
        }
    }

    #[test]
    fn no_objects_are_no_objects() {
        for objects in [json!([]), json!(null)] {
            let mut review = review(V1, &[]);
            review["request"]["objects"] = objects;
            assert_eq!(ask(&review).1["response"]["convertedObjects"], json!([]));
            review["request"].as_object_mut().unwrap().remove("objects");
            assert_eq!(ask(&review).1["response"]["convertedObjects"], json!([]));
        }
    }

    #[test]
    fn one_damaged_object_fails_the_list_in_its_own_name() {
        let mut objects: Vec<Value> = (0..500).map(object).collect();
        objects[1]["metadata"]["annotations"] = json!({"big": "x".repeat(200_000)});
        objects[250]["apiVersion"] = json!(V1);
        objects[250]["metadata"]["annotations"] = json!({super::super::POOLS_ANNOTATION: "{"});
        let (answered, response) = ask(&review(V2, &objects));
        assert_eq!(answered.objects, 500);
        let result = &response["response"]["result"];
        assert_eq!(result["status"], "Failed");
        let message = result["message"].as_str().unwrap();
        assert!(
            message.contains("objects/site-250") && message.contains("v1beta2-node-local-pools"),
            "{message}"
        );
        assert!(!message.contains("site-1 ") && !message.contains("site-251"));
        assert_eq!(response["response"]["convertedObjects"], json!([]));
    }

    #[test]
    fn an_unserved_or_unknown_version_is_failed_by_name_with_the_same_uid() {
        for (version, needle) in [
            ("garage.rajsingh.info/v1alpha1", "v1alpha1\" is not served"),
            ("garage.rajsingh.info/v9", "unknown version"),
            ("", "unknown version"),
        ] {
            let (answered, response) = ask(&review(version, &[object(1)]));
            assert!(answered.failure.is_some());
            assert_eq!(response["response"]["uid"], "705ab4f5");
            assert_eq!(response["response"]["result"]["status"], "Failed");
            let message = response["response"]["result"]["message"].as_str().unwrap();
            assert!(message.contains(needle), "{message}");
        }
        let mut old = object(1);
        old["apiVersion"] = json!("garage.rajsingh.info/v1alpha1");
        let (_, response) = ask(&review(V1, &[old]));
        let message = response["response"]["result"]["message"].as_str().unwrap();
        assert!(message.contains("objects/site-1") && message.contains("v1alpha1"), "{message}");
    }

    #[test]
    fn the_version_may_stand_after_the_objects() {
        let body = format!(
            r#"{{"request":{{"objects":[{}],"desiredAPIVersion":"{V1}","uid":"u\"1"}},"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}}"#,
            object(7)
        );
        let mut out = Vec::new();
        let answered = answer(body.as_bytes(), &mut out).unwrap();
        assert_eq!((answered.uid.as_str(), answered.objects), ("u\"1", 1));
        let response: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(response["response"]["uid"], "u\"1");
        assert_eq!(response["response"]["convertedObjects"][0]["spec"], json!({"replicas": 7}));
    }

    #[test]
    fn an_object_that_is_none_is_failed() {
        for odd in [json!(null), json!(5), json!([]), json!("x")] {
            let (answered, response) = ask(&review(V1, &[odd, object(1)]));
            assert_eq!(answered.objects, 2);
            assert_eq!(response["response"]["result"]["status"], "Failed");
        }
    }

    #[test]
    fn another_review_kind_or_version_is_failed() {
        let mut wrong = review(V1, &[object(1)]);
        wrong["apiVersion"] = json!("apiextensions.k8s.io/v1beta1");
        assert_eq!(ask(&wrong).1["response"]["result"]["status"], "Failed");
        wrong["kind"] = json!("AdmissionReview");
        assert_eq!(ask(&wrong).1["response"]["result"]["status"], "Failed");
    }

    #[test]
    fn a_body_without_an_answerable_uid_is_an_error() {
        refused(b"", "not JSON");
        refused(b"no", "not JSON");
        refused(b"[]", "expected an object");
        refused(b"{}", "no request");
        refused(br#"{"request":null}"#, "no request");
        refused(br#"{"response":{}}"#, "only a response");
        refused(br#"{"request":{}}"#, "no request.uid");
        refused(br#"{"request":{"uid":5}}"#, "request.uid is not a string");
        refused(br#"{"request":{"uid":"a","uid":"b"}}"#, "given twice");
        refused(br#"{"request":{"uid":"a","objects":[],"objects":[]}}"#, "given twice");
        refused(br#"{"request":{"uid":"a"},"request":{"uid":"a"}}"#, "given twice");
        refused(br#"{"request":{"uid":"a"}} x"#, "text after");
        refused(b"{\"request\":{\"uid\":\"\xff\"}}", "not UTF-8");
        refused(format!(r#"{{"a":{}"#, "[".repeat(200_000)).as_bytes(), "nested deeper");
        let cut = review(V1, &[object(1)]).to_string();
        for end in 0..cut.len() {
            refused(&cut.as_bytes()[..end], "not a ConversionReview request");
        }
    }
}
