//! The authority as the replicas share it: one Secret.
//!
//! Keys: `ca.crt`, `ca.key` (issues now); `next.crt`, `next.key`, `next-published-at` (published, does
//! not issue yet); `previous.crt`, `switched-at` (issued before); `handled-rotation` (the last request).
//! A request is the annotation [`ROTATE_ANNOTATION`] with a value not handled yet.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;

use crate::Error;
use crate::authority::Authority;
use crate::phase::{Facts, Policy, Step};

/// Any new value on the Secret asks for one rotation.
pub const ROTATE_ANNOTATION: &str = "garage.rajsingh.info/rotate-webhook-ca";

/// What the Secret holds.
#[derive(Debug, Clone)]
pub struct State {
    /// The CA that issues.
    pub current: Authority,
    /// The CA that will issue next, and since when it is published.
    pub next: Option<(Authority, Timestamp)>,
    /// The certificate of the CA that issued before, and when it stopped.
    pub previous: Option<(String, Timestamp)>,
    /// The last handled rotation request.
    pub handled: Option<String>,
}

type Data = BTreeMap<String, ByteString>;

fn text<'a>(data: &'a Data, key: &str) -> Result<Option<&'a str>, Error> {
    data.get(key)
        .map(|bytes| std::str::from_utf8(&bytes.0).map_err(|_| malformed(key, "it is not text")))
        .transpose()
}

fn malformed(key: &str, what: &str) -> Error {
    Error::Malformed {
        place: format!("key {key} of the CA Secret"),
        what: format!("{what}; delete the Secret and it is made anew"),
    }
}

fn time(data: &Data, key: &str) -> Result<Timestamp, Error> {
    text(data, key)?
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| malformed(key, "it is missing or no RFC 3339 time"))
}

impl State {
    /// With a first CA.
    pub fn create(now: Timestamp, policy: &Policy) -> Result<Self, Error> {
        Ok(Self {
            current: Authority::generate(now, policy.ca_lifetime)?,
            next: None,
            previous: None,
            handled: None,
        })
    }

    /// Reads the Secret's data. A half-written rotation is an error, never a silent new CA.
    pub fn from_data(data: &Data) -> Result<Self, Error> {
        let pair = |cert: &str, key: &str| -> Result<Option<Authority>, Error> {
            match (text(data, cert)?, text(data, key)?) {
                (None, None) => Ok(None),
                (Some(c), Some(k)) => {
                    Authority::parse(c, k, &format!("keys {cert} and {key} of the CA Secret")).map(Some)
                }
                _ => Err(malformed(cert, "certificate and key do not stand together")),
            }
        };
        let current = pair("ca.crt", "ca.key")?.ok_or_else(|| malformed("ca.crt", "it is missing"))?;
        let next = pair("next.crt", "next.key")?
            .map(|next| time(data, "next-published-at").map(|t| (next, t)))
            .transpose()?;
        let previous = text(data, "previous.crt")?
            .map(|cert| match crate::authority::not_after(cert) {
                Some(_) => time(data, "switched-at").map(|t| (cert.to_owned(), t)),
                None => Err(malformed("previous.crt", "it is no certificate")),
            })
            .transpose()?;
        Ok(Self { current, next, previous, handled: text(data, "handled-rotation")?.map(str::to_owned) })
    }

    /// The Secret's data.
    pub fn to_data(&self) -> Data {
        let mut data = Data::new();
        let mut put =
            |key: &str, value: &str| data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
        put("ca.crt", &self.current.cert_pem);
        put("ca.key", self.current.key_pem());
        if let Some((next, at)) = &self.next {
            put("next.crt", &next.cert_pem);
            put("next.key", next.key_pem());
            put("next-published-at", &at.to_string());
        }
        if let Some((cert, at)) = &self.previous {
            put("previous.crt", cert);
            put("switched-at", &at.to_string());
        }
        if let Some(handled) = &self.handled {
            put("handled-rotation", handled);
        }
        data
    }

    /// Every CA that a leaf in use may come from, as one PEM bundle.
    pub fn bundle(&self) -> String {
        let mut bundle = self.current.cert_pem.clone();
        for cert in self.next.iter().map(|(a, _)| &a.cert_pem).chain(self.previous.iter().map(|(c, _)| c)) {
            bundle.push_str(cert);
        }
        bundle
    }

    /// The facts that [`crate::phase::decide`] judges.
    pub fn facts(&self, requested: Option<&str>, carried_since: Option<Timestamp>) -> Facts {
        Facts {
            current_not_after: self.current.not_after,
            next_published_at: self.next.as_ref().map(|(_, t)| *t),
            switched_at: self.previous.as_ref().map(|(_, t)| *t),
            requested: requested.is_some_and(|r| !r.is_empty() && self.handled.as_deref() != Some(r)),
            carried_since,
        }
    }

    /// The state after a step.
    pub fn after(
        mut self,
        step: Step,
        requested: Option<&str>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Self, Error> {
        match step {
            Step::Wait => {}
            Step::Publish => {
                self.next = Some((Authority::generate(now, policy.ca_lifetime)?, now));
                if let Some(requested) = requested {
                    self.handled = Some(requested.to_owned());
                }
            }
            Step::Switch => {
                if let Some((next, _)) = self.next.take() {
                    let old = std::mem::replace(&mut self.current, next);
                    self.previous = Some((old.cert_pem, now));
                }
            }
            Step::Retire => self.previous = None,
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::phase::decide;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + s).unwrap()
    }

    #[test]
    fn a_whole_rotation_survives_being_stored_and_read_back_after_each_step() {
        let policy = Policy { propagation: 10, leaf_lifetime: 100, ..Policy::default() };
        let mut state = State::create(at(0), &policy).unwrap();
        let first = state.current.cert_pem.clone();
        let mut steps = Vec::new();
        for second in (0..200).step_by(5) {
            // The bundle of the publication is read back from then on.
            let carried = state.next.as_ref().map(|(_, published)| *published);
            let step = decide(&state.facts(Some("t1"), carried), &policy, at(second));
            if step != Step::Wait {
                steps.push((second, step));
            }
            state = state.after(step, Some("t1"), &policy, at(second)).unwrap();
            state = State::from_data(&state.to_data()).unwrap();
            assert!(state.bundle().contains(&state.current.cert_pem));
        }
        assert_eq!(steps, [(0, Step::Publish), (10, Step::Switch), (125, Step::Retire)]);
        assert_ne!(state.current.cert_pem, first);
        assert!(!state.bundle().contains(&first));
    }

    #[test]
    fn a_damaged_secret_is_an_error_that_names_the_key_and_never_a_new_ca() {
        let state = State::create(at(0), &Policy::default()).unwrap();
        for (key, value) in [("ca.crt", "x"), ("ca.key", "x"), ("next.crt", "x"), ("previous.crt", "x")] {
            let mut data = state.to_data();
            data.insert(key.to_owned(), ByteString(value.into()));
            let error = State::from_data(&data).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        assert!(State::from_data(&Data::new()).is_err());
    }
}
