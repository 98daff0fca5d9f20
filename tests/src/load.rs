//! Objects in a Garage site: a client that writes and checks them while a scenario runs.
//!
//! An object's content follows from its key, so a lost, mixed-up or corrupted one is seen without keeping a
//! copy. Only what Garage acknowledged must be there.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Garage's own default, and the schema's.
const REGION: &str = "garage";
/// Longer than Garage needs to notice a dead connection; a frozen node makes a request last longer.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
const SIGNATURE_VALID: Duration = Duration::from_secs(300);

/// One bucket of a site, with a key of its own.
#[derive(Debug)]
pub struct Store {
    name: String,
    credentials: Credentials,
    endpoints: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
    http: reqwest::Client,
}

impl Store {
    /// Creates a bucket and a key through a Garage Admin API and returns the bucket as seen through the S3
    /// endpoints.
    pub async fn create(
        admin: SocketAddr,
        token: &str,
        name: &str,
        endpoints: &[SocketAddr],
    ) -> Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_WITHIN)
            .build()
            .map_err(|error| Error::other(format!("making an HTTP client: {error}")))?;
        let post = async |call: &str, body: Value| -> Result<Value> {
            let failed = |error: reqwest::Error| Error::other(format!("{call} at {admin}: {error}"));
            let answer = http
                .post(format!("http://{admin}/v2/{call}"))
                .bearer_auth(token)
                .json(&body)
                .send()
                .await
                .map_err(failed)?;
            let status = answer.status();
            let text = answer.text().await.map_err(failed)?;
            if !status.is_success() {
                return Err(Error::other(format!("{call} at {admin}: {status}: {text}")));
            }
            serde_json::from_str(&text).map_err(|error| Error::other(format!("{call} at {admin}: {error}")))
        };
        let text = |value: &Value, field: &str| -> Result<String> {
            let found = value[field].as_str().map(str::to_owned);
            found.ok_or_else(|| Error::other(format!("Garage's answer has no {field}")))
        };
        let key = post("CreateKey", json!({"name": name})).await?;
        let bucket = post("CreateBucket", json!({"globalAlias": name})).await?;
        let (id, secret) = (text(&key, "accessKeyId")?, text(&key, "secretAccessKey")?);
        let allow = json!({
            "bucketId": text(&bucket, "id")?,
            "accessKeyId": id,
            "permissions": {"read": true, "write": true, "owner": false},
        });
        post("AllowBucketKey", allow).await?;
        Ok(Self {
            name: name.to_owned(),
            credentials: Credentials::new(id, secret),
            endpoints: Mutex::new(endpoints.to_vec()),
            next: AtomicUsize::new(0),
            http,
        })
    }

    /// Changes the endpoints: Pods come back with other addresses.
    pub fn set_endpoints(&self, endpoints: &[SocketAddr]) {
        *lock(&self.endpoints) = endpoints.to_vec();
    }

    /// The S3 endpoints in use.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        lock(&self.endpoints).clone()
    }

    /// Writes an object through one endpoint after the other in turn.
    pub async fn put(&self, key: &str, content: Bytes) -> Result<()> {
        let endpoint = self.turn()?;
        let bucket = self.bucket(endpoint)?;
        let url = bucket.put_object(Some(&self.credentials), key).sign(SIGNATURE_VALID);
        let failed =
            |error: &dyn std::fmt::Display| Error::other(format!("PUT {key} at {endpoint}: {error}"));
        let answer =
            self.http.put(url.as_str()).body(content).send().await.map_err(|error| failed(&error))?;
        if answer.status().is_success() { Ok(()) } else { Err(failed(&answer.status())) }
    }

    /// Reads a whole object through one endpoint after the other in turn.
    pub async fn get(&self, key: &str) -> Result<Bytes> {
        self.get_at(self.turn()?, key).await
    }

    /// Reads a whole object through one endpoint. Garage answers 200 and breaks off when a block is nowhere,
    /// so only a whole body counts.
    pub async fn get_at(&self, endpoint: SocketAddr, key: &str) -> Result<Bytes> {
        let bucket = self.bucket(endpoint)?;
        let url = bucket.get_object(Some(&self.credentials), key).sign(SIGNATURE_VALID);
        let failed =
            |error: &dyn std::fmt::Display| Error::other(format!("GET {key} at {endpoint}: {error}"));
        let answer = self.http.get(url.as_str()).send().await.map_err(|error| failed(&error))?;
        if !answer.status().is_success() {
            return Err(failed(&answer.status()));
        }
        answer.bytes().await.map_err(|error| failed(&error))
    }

    fn turn(&self) -> Result<SocketAddr> {
        let endpoints = lock(&self.endpoints);
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % endpoints.len().max(1);
        endpoints.get(turn).copied().ok_or_else(|| Error::other("the store has no S3 endpoint"))
    }

    fn bucket(&self, endpoint: SocketAddr) -> Result<Bucket> {
        let url = format!("http://{endpoint}").parse();
        let url = url.map_err(|_| Error::other(format!("{endpoint} makes no URL")))?;
        Bucket::new(url, UrlStyle::Path, self.name.clone(), REGION)
            .map_err(|error| Error::other(format!("the bucket at {endpoint}: {error}")))
    }
}

/// How a load goes about it.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Bytes of an object; from 3,073 on Garage stores it in blocks and not inline.
    pub object_size: usize,
    /// Pause between two objects of one writer.
    pub pause: Duration,
    /// Writers at once.
    pub writers: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { object_size: 16 << 10, pause: Duration::from_millis(50), writers: 2 }
    }
}

/// What a load saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects that Garage acknowledged.
    pub written: u64,
    /// Objects read back, whole and right.
    pub read: u64,
    /// PUTs that failed or were not answered in time.
    pub failed_puts: u64,
    /// GETs that failed or were not answered in time.
    pub failed_gets: u64,
    /// Objects that came back different. Never anything but 0.
    pub wrong: u64,
    /// The longest request.
    pub slowest: Duration,
    /// The last failures, for a person.
    pub failures: Vec<String>,
}

/// Objects written before, and a writer and reader that may run.
pub struct Load {
    store: Arc<Store>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    report: Mutex<Report>,
    keys: Mutex<BTreeSet<String>>,
    number: AtomicU64,
}

impl Load {
    /// A load that writes nothing by itself yet.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, shared: Arc::default(), stop: CancellationToken::new(), tasks: Vec::new() }
    }

    /// Writes a number of objects now; fails at the first that Garage does not take.
    pub async fn write(&self, objects: u64, object_size: usize) -> Result<()> {
        for _ in 0..objects {
            let key = self.shared.next_key(object_size);
            self.store.put(&key, content(&key, object_size)).await?;
            self.shared.acknowledged(key);
        }
        Ok(())
    }

    /// Begins to write objects and to read each back, until [`Self::stop`].
    pub fn run(&mut self, pace: Pace) {
        for _ in 0..pace.writers {
            let (store, shared, stop) = (self.store.clone(), self.shared.clone(), self.stop.clone());
            self.tasks.push(tokio::spawn(async move {
                while !stop.is_cancelled() {
                    shared.one(&store, pace.object_size).await;
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(pace.pause) => {}
                    }
                }
            }));
        }
    }

    /// Ends the writing after the requests in flight, and says what it saw.
    pub async fn stop(&mut self) -> Report {
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            // A panic in a writer is a failed load.
            if let Err(error) = task.await {
                lock(&self.shared.report).failures.push(format!("a writer ended: {error}"));
            }
        }
        self.stop = CancellationToken::new();
        self.report()
    }

    /// What it saw until now.
    pub fn report(&self) -> Report {
        lock(&self.shared.report).clone()
    }

    /// How many objects must be there.
    pub fn objects(&self) -> usize {
        lock(&self.shared.keys).len()
    }

    /// The store it writes to.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Reads every acknowledged object back and compares it. Returns how many there were; the error names the
    /// first objects that are missing or different.
    pub async fn verify(&self) -> Result<usize> {
        let keys: Vec<String> = lock(&self.shared.keys).iter().cloned().collect();
        let mut bad = Vec::new();
        for key in &keys {
            match self.store.get(key).await {
                Ok(got) if digest(&got) == digest(&content(key, size_of_key(key))) => {}
                Ok(got) => bad.push(format!("{key} came back different ({} bytes)", got.len())),
                Err(error) => bad.push(error.to_string()),
            }
        }
        if bad.is_empty() {
            return Ok(keys.len());
        }
        let first = bad.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        Err(Error::other(format!(
            "{} of {} objects are not there as written:\n{first}",
            bad.len(),
            keys.len()
        )))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // A failed test must not leave writers behind.
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    fn next_key(&self, object_size: usize) -> String {
        format!("object-{:06}-{object_size}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    fn acknowledged(&self, key: String) {
        lock(&self.report).written += 1;
        lock(&self.keys).insert(key);
    }

    async fn one(&self, store: &Store, object_size: usize) {
        let key = self.next_key(object_size);
        let begun = Instant::now();
        let put = store.put(&key, content(&key, object_size)).await;
        self.took(begun.elapsed());
        if let Err(error) = put {
            self.failed(&error, |report| report.failed_puts += 1);
            return;
        }
        self.acknowledged(key.clone());
        let begun = Instant::now();
        let got = store.get(&key).await;
        self.took(begun.elapsed());
        match got {
            Ok(got) if digest(&got) == digest(&content(&key, object_size)) => lock(&self.report).read += 1,
            Ok(_) => {
                self.failed(&Error::other(format!("{key} came back different")), |report| report.wrong += 1);
            }
            Err(error) => self.failed(&error, |report| report.failed_gets += 1),
        }
    }

    fn took(&self, time: Duration) {
        let mut report = lock(&self.report);
        report.slowest = report.slowest.max(time);
    }

    fn failed(&self, error: &Error, count: impl FnOnce(&mut Report)) {
        let mut report = lock(&self.report);
        count(&mut report);
        if report.failures.len() >= 10 {
            report.failures.remove(0);
        }
        report.failures.push(error.to_string());
    }
}

/// What an object of a key holds: random bytes (nothing to compress) that the key alone decides.
pub fn content(key: &str, size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    StdRng::from_seed(digest(key.as_bytes())).fill_bytes(&mut bytes);
    Bytes::from(bytes)
}

fn size_of_key(key: &str) -> usize {
    key.rsplit('-').next().and_then(|size| size.parse().ok()).unwrap_or_default()
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objects_content_follows_from_its_key() {
        let shared = Shared::default();
        let (first, second) = (shared.next_key(5000), shared.next_key(5000));
        assert_ne!(first, second);
        assert_eq!(size_of_key(&first), 5000);
        assert_eq!(content(&first, 5000), content(&first, 5000));
        assert_ne!(content(&first, 5000), content(&second, 5000));
    }
}
