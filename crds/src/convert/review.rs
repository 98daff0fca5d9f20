//! The ConversionReview envelope (`apiextensions.k8s.io/v1`), read and answered on bytes.
//!
//! [`answer`] is what a server needs: one request body in, one response body out, order and count of the objects
//! kept (C6), `Failed` with the message of the first object that cannot be converted.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ConvertError, Problem, Version, convert_raw};

/// A request whose envelope could not be answered in a ConversionReview: there is no `uid` to answer to.
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
    /// The envelope has a `uid` but lacks something else.
    #[error("{0}")]
    Envelope(String),
    /// One object could not be converted.
    #[error(transparent)]
    Object(#[from] ConvertError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: Option<String>,
    #[serde(rename = "desiredAPIVersion")]
    desired: Option<String>,
    #[serde(borrow)]
    objects: Option<Vec<&'a RawValue>>,
}

/// Answers the review in `body`: appends the response's JSON to `out`. An error means that no response can be
/// written (not JSON, no `request.uid`); `out` is then as it was.
pub fn answer(body: &[u8], out: &mut Vec<u8>) -> Result<Answered, ReviewError> {
    let envelope: Envelope<'_> = serde_json::from_slice(body).map_err(|e| ReviewError(e.to_string()))?;
    let request = envelope.request.ok_or_else(|| ReviewError("it has no request".into()))?;
    let uid =
        request.uid.filter(|u| !u.is_empty()).ok_or_else(|| ReviewError("it has no request.uid".into()))?;
    let desired = request.desired.unwrap_or_default();
    let objects = request.objects.unwrap_or_default();
    let start = out.len();
    out.extend_from_slice(
        br#"{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{"uid":"#,
    );
    out.extend_from_slice(serde_json::Value::from(uid.as_str()).to_string().as_bytes());
    out.extend_from_slice(br#","convertedObjects":["#);
    let mut failure = None;
    match Version::from_api_version(&desired) {
        None => {
            failure = Some(Failure::Envelope(format!(
                "desiredAPIVersion: {}",
                Problem::UnknownVersion(desired.clone())
            )));
        }
        Some(version) => {
            for (i, object) in objects.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                if let Err(error) = convert_raw(object.get().as_bytes(), version, out) {
                    failure = Some(Failure::Object(error));
                    break;
                }
            }
        }
    }
    if let Some(failure) = &failure {
        out.truncate(start);
        write_failed(&uid, &failure.to_string(), out);
    } else {
        out.extend_from_slice(br#"],"result":{"status":"Success"}}}"#);
    }
    Ok(Answered { uid, desired, objects: objects.len(), failure })
}

/// Appends a `Failed` response for `uid`.
pub fn write_failed(uid: &str, message: &str, out: &mut Vec<u8>) {
    let response = serde_json::json!({
        "kind": "ConversionReview",
        "apiVersion": "apiextensions.k8s.io/v1",
        "response": {
            "uid": uid,
            "convertedObjects": [],
            "result": { "status": "Failed", "message": message },
        },
    });
    out.extend_from_slice(response.to_string().as_bytes());
}
