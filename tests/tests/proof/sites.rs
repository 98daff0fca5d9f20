//! The sites of this suite: each test takes one for itself and gives it back whole; a test that fails keeps
//! its broken one, and the next test gets a new one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use holdfast_tests::Error;
use holdfast_tests::bed::{Bed, assets};
use holdfast_tests::load::Load;
use holdfast_tests::repairs::Launches;
use holdfast_tests::service::{VERIFY, answered};
use holdfast_tests::site::{Member, Pool, Site, condition};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Sites that are in use at once. What a proof does most of the time is to wait.
pub const AT_ONCE: usize = 2;
pub const MINUTE: Duration = Duration::from_secs(60);
/// Something that a few passes show.
pub const STEP: Duration = Duration::from_secs(480);
/// A proof with the bed's short waits, on a loaded machine, with something to mend on the way.
pub const PROOF: Duration = Duration::from_secs(700);
pub const REPLICATED: &str = "FullyReplicated";

const MIB: u64 = 1 << 20;
const OBJECT: usize = 40_000;

static FREE: Mutex<Vec<(Site, Load)>> = Mutex::new(Vec::new());
static MADE: AtomicU32 = AtomicU32::new(0);
static INSTALLED: OnceCell<()> = OnceCell::const_new();
/// Who kills the product is alone.
static PRODUCT: RwLock<()> = RwLock::const_new(());

/// A site with some objects, for one test alone.
pub struct Ground {
    pub bed: Arc<Bed>,
    pub site: Site,
    pub load: Load,
    _product: Box<dyn Send + Sync>,
}

impl Ground {
    /// A whole site.
    pub async fn take(bed: &Arc<Bed>) -> Result<Self, Error> {
        Self::taken(bed, Box::new(PRODUCT.read().await)).await
    }

    /// The same, while no other test runs.
    pub async fn take_alone(bed: &Arc<Bed>) -> Result<Self, Error> {
        Self::taken(bed, Box::new(PRODUCT.write().await)).await
    }

    async fn taken(bed: &Arc<Bed>, product: Box<dyn Send + Sync>) -> Result<Self, Error> {
        install(bed).await?;
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (site, load) = match free {
            Some(whole) => whole,
            None => made(bed, next(assets::GARAGE)).await?,
        };
        Ok(Self { bed: bed.clone(), site, load, _product: product })
    }

    /// For the next test.
    pub fn give_back(self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push((self.site, self.load));
    }

    /// Requests a proof, and waits until the request is taken up: what is seen from then on is its doing.
    pub async fn request(&self, token: &str) -> Result<(), Error> {
        self.site.annotate(&self.bed, VERIFY, Some(token)).await?;
        self.site
            .wait(&self.bed, "the request taken up", STEP, |object| {
                let verification = verification(object);
                if verification["requestToken"] == token { Ok(()) } else { Err(verification.to_string()) }
            })
            .await
    }

    /// Waits until the proof that a token asked for ended in True, and looks with other eyes whether it is.
    pub async fn proven(&self, token: &str) -> Result<(), Error> {
        self.site.wait(&self.bed, "FullyReplicated=True", PROOF, |object| answered(object, token)).await?;
        self.whole().await?;
        self.nothing_was_deleted()
    }

    pub async fn prove(&self, token: &str) -> Result<(), Error> {
        self.request(token).await?;
        self.proven(token).await
    }

    /// Waits for a reason of `FullyReplicated`.
    pub async fn reason(&self, reason: &str) -> Result<String, Error> {
        let said = self.site.wait_reason(&self.bed, REPLICATED, reason, STEP).await?;
        Ok(said["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits for a reason whose message has a text.
    pub async fn reason_with(&self, reason: &str, words: &[&str]) -> Result<(), Error> {
        self.site
            .wait(&self.bed, &format!("{reason} with {words:?}"), STEP, |object| {
                let said = condition(object, REPLICATED);
                let message = said["message"].as_str().unwrap_or_default();
                let fits = said["reason"] == reason && words.iter().all(|word| message.contains(word));
                if fits { Ok(()) } else { Err(said.to_string()) }
            })
            .await
    }

    /// Waits until the proof is in a stage and has launched what belongs to it; the node whose turn it is.
    pub async fn stage(&self, stage: &str) -> Result<String, Error> {
        let judge = |object: &Value| {
            let verification = verification(object);
            let evidence = &verification["evidence"];
            let there = match stage {
                "Settling" => verification["phase"] == "Settling" && evidence["quietSince"].is_string(),
                "Pause" => evidence["nodeStage"] == "Pause",
                _ => evidence["nodeStage"] == stage && evidence["stageLaunchedAt"].is_string(),
            };
            let node = verification["currentNodeId"].as_str().unwrap_or_default().to_owned();
            if there { Ok(node) } else { Err(verification.to_string()) }
        };
        self.site.wait(&self.bed, &format!("stage {stage}"), PROOF, judge).await
    }

    pub async fn verification(&self) -> Result<Value, Error> {
        Ok(verification(&self.site.get(&self.bed.client).await?.data).clone())
    }

    /// Identities and their Nodes, in the order of turns.
    pub async fn ids(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut ids = BTreeMap::new();
        for node in self.site.nodes() {
            ids.insert(self.site.identity(&self.bed, &node).await?, node);
        }
        Ok(ids)
    }

    /// The member of an identity.
    pub async fn member(&self, id: &str) -> Result<Member, Error> {
        let node = self.ids().await?.remove(id);
        let node = node.ok_or_else(|| Error::other(format!("nobody here is {id}")))?;
        self.site.member(&self.bed, &node).await
    }

    /// The load goes through these members from now on.
    pub fn write_through<'a>(&self, members: impl IntoIterator<Item = &'a Member>) {
        let endpoints: Vec<_> = members.into_iter().map(Member::s3).collect();
        self.load.store().set_endpoints(&endpoints);
    }

    pub async fn write(&self, objects: u64) -> Result<(), Error> {
        self.load.write(objects, OBJECT).await
    }

    /// The blocks on a Node's disk, by name.
    pub fn blocks(&self, node: &str) -> Result<BTreeSet<String>, Error> {
        let blocks = self.bed.disks.blocks(node, &self.site.pools[0].data())?;
        Ok(blocks.iter().map(|path| name_of(path)).collect())
    }

    /// Every block and every item is on every node, and every object comes back as it was written.
    pub async fn whole(&self) -> Result<(), Error> {
        let members = self.site.members(&self.bed).await?;
        let mut blocks = BTreeMap::new();
        let mut items = BTreeMap::new();
        for member in &members {
            blocks.insert(member.node.clone(), self.blocks(&member.node)?);
            items.insert(member.node.clone(), items_of(&self.site, member).await?);
        }
        self.write_through(&members);
        let objects = self.load.verify().await?;
        let all: BTreeSet<&String> = blocks.values().flatten().collect();
        for (node, has) in &blocks {
            let missing: Vec<_> = all.iter().filter(|block| !has.contains(**block)).take(3).collect();
            if has.len() < all.len() || has.len() < objects {
                let (have, of) = (has.len(), all.len());
                return Err(Error::other(format!("True, and {node} has {have} of {of} blocks: {missing:?}")));
            }
        }
        let distinct: BTreeSet<&Vec<(String, i64)>> = items.values().collect();
        if members.len() < 3 || distinct.len() != 1 {
            return Err(Error::other(format!("True, and the items are not the same everywhere: {items:?}")));
        }
        Ok(())
    }

    /// A node that misses items is never made to delete a block by our repair.
    pub fn nothing_was_deleted(&self) -> Result<(), Error> {
        match self.site.deleted_block(&self.bed)? {
            Some(line) => Err(Error::other(line)),
            None => Ok(()),
        }
    }

    /// The repairs that Garage began on this site until now.
    pub fn launches(&self) -> Result<Launches, Error> {
        self.site.launches(&self.bed)
    }

    /// The repairs that Garage began since then.
    pub fn launches_since(&self, then: Launches) -> Result<Launches, Error> {
        let now = self.launches()?;
        Ok(Launches { tables: now.tables - then.tables, blocks: now.blocks - then.blocks })
    }

    /// Follows the site's conditions and phases.
    pub fn trail(&self) -> Trail {
        let of_this = watcher::Config::default().fields(&format!("metadata.name={}", self.site.name));
        let mut events = watcher(self.site.api(self.bed.client.clone()), of_this).applied_objects().boxed();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let kept = seen.clone();
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Ok(object) = event else { continue };
                let phase = verification(&object.data)["phase"].as_str().unwrap_or_default().to_owned();
                let condition = condition(&object.data, REPLICATED).clone();
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(Seen { phase, condition });
            }
        });
        Trail { seen, task }
    }
}

struct Seen {
    phase: String,
    condition: Value,
}

/// What was seen of a proof, change by change.
pub struct Trail {
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Trail {
    /// Nothing of it was True.
    pub fn never_true(&self) -> Result<(), Error> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.iter().find(|seen| seen.condition["status"] == "True") {
            Some(seen) => Err(Error::other(format!("it was True: {}", seen.condition))),
            None if seen.is_empty() => Err(Error::other("nothing was seen")),
            None => Ok(()),
        }
    }

    /// The phases in their order.
    pub fn phases(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut phases: Vec<String> = seen.iter().map(|seen| seen.phase.clone()).collect();
        phases.dedup();
        phases
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn verification(object: &Value) -> &Value {
    &object["status"]["redundancy"]["verification"]
}

/// The product, on machines of its own: what happens to a storage machine must not happen to it as well.
pub async fn install(bed: &Arc<Bed>) -> Result<(), Error> {
    INSTALLED
        .get_or_try_init(|| async {
            for node in ["infra-1", "infra-2"] {
                bed.add_node(node, &[("bed/role", "infra")]).await?;
            }
            bed.install(&["nodeSelector.bed/role=infra"]).await.map(|_| ())
        })
        .await
        .copied()
}

/// A site that was not there before, with disks that are quick to fill.
pub fn next(garage: &str) -> Site {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let mut site = Site::new(garage);
    (site.namespace, site.name) = (format!("objects-{number}"), format!("site-{number}"));
    site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "5s"}});
    let nodes: Vec<String> = (1..=3).map(|one| format!("kn-{number}{one}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    // A name of its own: the pool selects its Nodes by it.
    let mut pool = Pool::new(&format!("fast-{number}"), &nodes);
    "200Mi".clone_into(&mut pool.capacity);
    (pool.metadata_size, pool.data_size) = (128 * MIB, 256 * MIB);
    site.pools = vec![pool];
    site
}

/// Brings a site up and writes some objects.
pub async fn made(bed: &Arc<Bed>, site: Site) -> Result<(Site, Load), Error> {
    // A member may see the others later than the product does, and for a moment a new one refuses requests.
    if site.bring_up(bed).await.is_err() {
        site.wait_up_within(bed, MINUTE).await?;
    }
    let members = site.members(bed).await?;
    let load = Load::new(Arc::new(site.store(&members, "proof").await?));
    let deadline = Instant::now() + MINUTE;
    while let Err(error) = load.write(1, OBJECT).await {
        if Instant::now() > deadline {
            return Err(error);
        }
        sleep(Duration::from_secs(1)).await;
    }
    load.write(19, OBJECT).await?;
    Ok((site, load))
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.strip_suffix(".zst").map_or_else(|| name.clone(), str::to_owned)
}

/// How many items a member holds of each table that a proof pushes (Garage 2.3 and later say so). Garage's own
/// queues may move for some seconds after a write.
async fn items_of(site: &Site, member: &Member) -> Result<Vec<(String, i64)>, Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = site.ask(member, "GetNodeStatistics?node=self").await?;
        let own = answer["success"].as_object().and_then(|nodes| nodes.values().next());
        let tables = own.and_then(|own| own["tableStats"].as_array().cloned()).unwrap_or_default();
        let ours = tables.iter().filter(|table| {
            ["bucket_v2", "object", "version", "block_ref", "key"]
                .iter()
                .any(|name| table["tableName"] == *name)
        });
        let number = |value: &Value| value.as_i64().unwrap_or(-1);
        let queued: i64 = ours.clone().map(|table| number(&table["insertQueueLen"])).sum();
        if queued == 0 || Instant::now() > deadline {
            let item = |table: &Value| (table["tableName"].to_string(), number(&table["items"]));
            return Ok(ours.map(item).collect());
        }
        sleep(Duration::from_millis(500)).await;
    }
}
