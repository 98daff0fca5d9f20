//! The loop around the pure parts: every replica keeps a leaf of its own, and sees to it once, when it
//! starts, that the API server trusts it; the leader rotates, and keeps the bundles as they must be.
//!
//! It polls by name rather than watching: that needs no permission beyond `get` on three named
//! objects, and nothing can be missed by a cut watch.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::Error;
use crate::authority::Leaf;
use crate::inject::{self, Found, Places, Wanted};
use crate::phase::{Policy, Step, decide};
use crate::serving::{Slot, certified_key, read_files};
use crate::state::{ROTATE_ANNOTATION, State};

/// Deadline of one call.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// How often everything is looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// How often while there is no certificate yet, or nobody trusts it.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
/// How long a starting replica waits for a place that is not there: Helm makes the
/// ValidatingWebhookConfiguration last of all. Then it serves without; the leader injects when it comes.
const ABSENT_FOR: Duration = Duration::from_secs(30);

/// Bounds a call and names it in the error.
pub(crate) async fn deadline<T>(
    what: &'static str,
    within: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(within, call).await {
        Ok(result) => result.map_err(|source| Error::Kube { what, source: Box::new(source) }),
        Err(_) => Err(Error::Deadline(what)),
    }
}

/// End of the served certificate in seconds since the epoch; 0 until there is one.
#[derive(Debug, Clone, Default)]
pub struct Expiry(Arc<AtomicI64>);

impl Expiry {
    /// Seconds since the epoch, 0 while there is no certificate.
    pub fn seconds(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
    fn set(&self, t: Timestamp) {
        self.0.store(t.as_second(), Ordering::Relaxed);
    }
}

/// Whether the API server was seen to trust this replica's certificate since it started: the last thing that
/// readiness asks for. It is asked once; a replica that serves never becomes unready by a change of the
/// bundle, which is for the leader to repair, and not for the replicas to leave the Service because of it.
#[derive(Debug, Clone, Default)]
pub struct Trust(Arc<AtomicBool>);

impl Trust {
    /// What is missing, for a probe's answer; `None` when nothing is.
    pub fn missing(&self) -> Option<&'static str> {
        const MISSING: &str = "the CA of the serving certificate was not yet read back from the ValidatingWebhookConfiguration and the CRD";
        (!self.is_given()).then_some(MISSING)
    }

    /// For certificates whose bundle somebody else injects.
    pub fn of_others() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn give(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the API server trusts this replica, by what was found (before anything was written: what is
/// written counts when it is read back) and how long the replica has been waiting.
fn is_trusted(found: Found, waited: Duration) -> bool {
    !found.differed && (!found.absent || waited >= ABSENT_FOR)
}

/// What a replica keeps between two looks. Losing it costs a leaf and some waiting.
#[derive(Default)]
struct Kept {
    leaf: Option<Leaf>,
    carried: Option<Carried>,
}

/// A bundle that both places were found to carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Carried {
    pub(crate) bundle: String,
    /// Since when, without a look in between that found something else.
    pub(crate) since: Timestamp,
}

/// What a look at `now` adds. A place that is not there holds no rotation up.
pub(crate) fn carried(
    before: Option<Carried>,
    bundle: &str,
    found: Found,
    now: Timestamp,
) -> Option<Carried> {
    if found.differed {
        return None;
    }
    let same = before.filter(|carried| carried.bundle == bundle);
    Some(same.unwrap_or_else(|| Carried { bundle: bundle.to_owned(), since: now }))
}

/// Whether a leaf is of the CA that issues now, and has time left.
pub(crate) fn fits(leaf: &Leaf, state: &State, policy: &Policy, now: Timestamp) -> bool {
    leaf.issuer_pem == state.current.cert_pem
        && leaf.not_after.as_second() - now.as_second() > policy.leaf_renew_before
}

/// An authority of our own.
pub struct SelfSigned {
    /// Kubernetes.
    pub client: Client,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Names that the leaf is for.
    pub dns_names: Vec<String>,
    /// Where the bundle goes.
    pub places: Places,
    /// Lifetimes.
    pub policy: Policy,
    /// Where the certificate goes.
    pub slot: Slot,
    /// Its end, for the metric.
    pub expiry: Expiry,
    /// Whether the API server trusts it.
    pub trust: Trust,
}

impl SelfSigned {
    /// Runs for ever. `leads` says whether this replica may rotate and inject now. A failure is logged
    /// and tried again: the certificate that is there goes on serving.
    pub async fn run(self, leads: impl Fn() -> bool + Send) {
        let mut kept = Kept::default();
        let started = tokio::time::Instant::now();
        loop {
            if let Err(error) = self.turn(&mut kept, leads(), Timestamp::now(), started.elapsed()).await {
                tracing::warn!(%error, "certificates");
            }
            let first = kept.leaf.is_none() || !self.trust.is_given();
            tokio::time::sleep(if first { FIRST_INTERVAL } else { INTERVAL }).await;
        }
    }

    async fn turn(
        &self,
        kept: &mut Kept,
        leads: bool,
        now: Timestamp,
        elapsed: Duration,
    ) -> Result<(), Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = "reading the CA Secret";
        let secret = match deadline(what, CALL_DEADLINE, api.get_opt(&self.secret)).await? {
            Some(secret) => secret,
            None => self.create(&api, now).await?,
        };
        let state = State::from_data(secret.data.as_ref().unwrap_or(&std::collections::BTreeMap::new()))?;
        self.serve(&mut kept.leaf, &state, now)?;
        let bundle = state.bundle();
        if !self.trust.is_given() {
            let trusting = Wanted::Trusting { certificate: &state.current.cert_pem, bundle: &bundle };
            if is_trusted(inject::ensure(&self.client, &self.places, trusting).await?, elapsed) {
                self.trust.give();
            }
        }
        if !leads {
            return Ok(());
        }
        let before = kept.carried.take();
        let found = inject::ensure(&self.client, &self.places, Wanted::Exactly(&bundle)).await?;
        // Of the moment after the look, however slow it was: somebody else may have put the bundle in place meanwhile.
        kept.carried = carried(before, &bundle, found, Timestamp::now());
        let requested = secret.metadata.annotations.as_ref().and_then(|a| a.get(ROTATE_ANNOTATION)).cloned();
        let since = kept.carried.as_ref().map(|carried| carried.since);
        let step = decide(&state.facts(requested.as_deref(), since), &self.policy, now);
        if step == Step::Wait {
            return Ok(());
        }
        let state = state.after(step, requested.as_deref(), &self.policy, now)?;
        // With the resource version that was read: a rival's step is never overwritten.
        let secret = Secret { data: Some(state.to_data()), ..secret };
        let what = "writing the CA Secret";
        deadline(what, CALL_DEADLINE, api.replace(&self.secret, &PostParams::default(), &secret)).await?;
        tracing::info!(?step, "certificate authority rotation");
        inject::ensure(&self.client, &self.places, Wanted::Exactly(&state.bundle())).await?;
        self.serve(&mut kept.leaf, &state, now)
    }

    /// Keeps a valid leaf of the current CA in the slot.
    fn serve(&self, leaf: &mut Option<Leaf>, state: &State, now: Timestamp) -> Result<(), Error> {
        if leaf.as_ref().is_some_and(|leaf| fits(leaf, state, &self.policy, now)) {
            return Ok(());
        }
        let new = state.current.issue(&self.dns_names, now, self.policy.leaf_lifetime)?;
        self.slot.store(Some(Arc::new(certified_key(&new.cert_pem, &new.key_pem, "the new leaf")?)));
        self.expiry.set(new.not_after);
        tracing::info!(not_after = %new.not_after, "serving certificate issued");
        *leaf = Some(new);
        Ok(())
    }

    /// Whichever replica comes first makes it; the others read what it made.
    async fn create(&self, api: &Api<Secret>, now: Timestamp) -> Result<Secret, Error> {
        let state = State::create(now, &self.policy)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.clone()),
                labels: Some([("app.kubernetes.io/name".to_owned(), "garage-holdfast".to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(state.to_data()),
            ..Secret::default()
        };
        let what = "creating the CA Secret";
        match deadline(what, CALL_DEADLINE, api.create(&PostParams::default(), &secret)).await {
            Err(Error::Kube { source, .. }) if matches!(&*source, kube::Error::Api(s) if s.is_already_exists()) => {
                deadline("reading the CA Secret", CALL_DEADLINE, api.get(&self.secret)).await
            }
            other => other,
        }
    }
}

/// Certificates from files that somebody else renews (cert-manager): read again every few seconds,
/// replaced when they changed, kept when the new ones do not fit.
pub struct Files {
    /// Folder with `tls.crt` and `tls.key`.
    pub dir: PathBuf,
    /// Where the certificate goes.
    pub slot: Slot,
    /// Its end, for the metric.
    pub expiry: Expiry,
}

impl Files {
    /// Runs for ever.
    pub async fn run(self) {
        let mut served: Option<String> = None;
        loop {
            match read_files(&self.dir).await {
                Ok((certified, not_after, text)) => {
                    if served.as_ref() != Some(&text) {
                        self.slot.store(Some(Arc::new(certified)));
                        self.expiry.set(not_after);
                        tracing::info!(%not_after, "serving certificate read");
                        served = Some(text);
                    }
                }
                Err(error) => tracing::warn!(%error, "certificates"),
            }
            tokio::time::sleep(if served.is_none() { FIRST_INTERVAL } else { INTERVAL }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_trusted_when_both_bundles_were_read_back_and_waits_for_an_absent_place_only_so_long() {
        let found = |differed, absent| Found { differed, absent };
        assert!(is_trusted(found(false, false), Duration::ZERO));
        assert!(!is_trusted(found(true, false), 2 * ABSENT_FOR), "what was just written is read back first");
        assert!(!is_trusted(found(false, true), Duration::ZERO));
        assert!(is_trusted(found(false, true), ABSENT_FOR));
    }

    #[test]
    fn readiness_says_what_is_missing_until_trust_is_given() {
        let trust = Trust::default();
        assert!(trust.missing().is_some_and(|text| text.contains("ValidatingWebhookConfiguration")));
        trust.give();
        assert_eq!(trust.missing(), None);
        assert_eq!(Trust::of_others().missing(), None);
    }
}
