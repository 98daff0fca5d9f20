//! The Garage model: processes, links, disks, items, blocks, queues and workers (FACTS 13).

use holdfast_crds::ids::NodeId;

use super::rng::Rng;

/// Most items a schedule writes; each refers to one block of the same number.
pub const ITEMS: usize = 16;
/// The first ID that a repair worker gets; the lower ones are the permanent workers (FACTS 6).
pub const FIRST_REPAIR: u64 = 60;
const NEVER: i64 = i64::MAX;

/// A set of items or blocks.
pub type Set = u16;

/// The two ends of the supported range, as far as they behave differently (FACTS 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GarageVersion {
    /// 2.0.0: no deferred worker, a second queue entry for now, failed block writes go unnoticed.
    V200,
    /// 2.5.0.
    V250,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// Running.
    Up,
    /// Dead.
    Down,
    /// Stopped: it holds its connections and answers nothing (FACTS 1.9).
    Frozen,
}

/// What a loss came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The process was down, or just started (FACTS 9).
    Down,
    /// Frozen.
    Frozen,
    /// The link to this node was cut.
    Cut(usize),
    /// The data disk was full.
    DataFull,
    /// The metadata disk was full.
    MetadataFull,
    /// The data disk was unmounted.
    Unmounted,
    /// Files vanished from a disk: nothing shows it.
    Silent,
}

/// One stretch in which something was wrong with a node.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Whether any observation could have shown it. What none showed cannot be held against the proof.
    pub observed: bool,
    /// It is over.
    pub over: bool,
}

/// A `Block repair worker`.
#[derive(Debug, Clone)]
pub struct RepairRun {
    /// Its worker ID.
    pub id: u64,
    /// When its scan ends; it is done from then on.
    pub ends_at: i64,
    /// Whether it ended.
    pub done: bool,
    /// Its errors.
    pub errors: u64,
    /// The proof launched it.
    pub ours: bool,
    /// Acknowledged items that the node was known to lack when it began.
    pub lacked: Set,
}

/// One node.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // Each is a fault or a fact of its own that a schedule flips.
pub struct Node {
    /// Its identity.
    pub id: NodeId,
    /// It is another site's.
    pub remote: bool,
    /// It holds a storage role in the current layout.
    pub storage: bool,
    /// Its process.
    pub alive: Alive,
    /// When the process started.
    pub started_at: i64,
    /// When it was frozen.
    pub frozen_at: i64,
    /// Number of its Pod.
    pub pod: u32,
    /// Restarts of the container in this Pod.
    pub restarts: i32,
    /// Its data disk is full.
    pub data_full: bool,
    /// Its metadata disk is full.
    pub metadata_full: bool,
    /// Its data disk is unmounted: the blocks it had lie hidden.
    pub unmounted: Option<Set>,
    /// Items that it has.
    pub items: Set,
    /// Blocks that it has, or believes to have.
    pub blocks: Set,
    /// Blocks whose write failed unnoticed (2.0.0).
    pub corrupt: Set,
    /// When each block is checked next.
    pub queue: [i64; ITEMS],
    /// Blocks with resync errors.
    pub errored: Set,
    tries: [u32; ITEMS],
    /// 2.5.0: findings of a repair that wait in the deferred worker, and until when.
    pub deferred: Option<(i64, Set)>,
    /// The running table sync's end.
    pub sync_ends: i64,
    /// When it began.
    pub sync_began: i64,
    /// Further passes that were asked for.
    pub sync_waiting: u32,
    /// The sync lost its quorum and backs off.
    pub sync_throttled: bool,
    /// Failed steps of its sync workers.
    pub sync_errors: u64,
    /// Failed sync calls on its metrics page (D2).
    pub sync_rpc_errors: u64,
    start_sync_at: i64,
    anti_entropy_at: i64,
    /// Its repairs since its start.
    pub repairs: Vec<RepairRun>,
    /// The next worker's ID.
    pub next_worker: u64,
    late: Vec<(i64, bool)>,
    /// `persistentErrors` as the worker showed it at its last step.
    pub persistent_shown: u32,
    wakes_at: i64,
    /// End of its last scrub.
    pub last_scrub: Option<i64>,
    undelivered: Set,
    /// Faults so far.
    pub faults: Vec<Fault>,
    /// Which fault cost it an item.
    pub item_lost_by: [Option<u8>; ITEMS],
    /// Which fault cost it a block.
    pub block_lost_by: [Option<u8>; ITEMS],
}

/// The layout's history.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Current version.
    pub version: u64,
    /// While an older version is live: when it ends.
    pub draining_until: Option<i64>,
    /// A role change is staged.
    pub staged: bool,
    /// Part of every tag list: a tag-only change raises it.
    pub tag: u32,
    /// Capacity of every storage role, in bytes.
    pub capacity: u64,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Garage {
    /// True time.
    pub now: i64,
    /// Its version.
    pub version: GarageVersion,
    /// Its `rpc_timeout`.
    pub rpc_timeout: i64,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Layout.
    pub layout: Layout,
    /// Cut links, lower index first.
    pub cuts: Vec<(usize, usize)>,
    /// Per observer and target: seen up, and a change to come.
    seen: Vec<Vec<(bool, i64, bool)>>,
    /// Items written and acknowledged.
    pub acknowledged: Set,
    /// Items written.
    pub written: usize,
    /// Own syncs every 10 minutes. Without them nothing mends by itself, which finds more.
    pub anti_entropy: bool,
    /// Clients write all the time: references pass through the resync queue, and checks of earlier ones are made.
    pub busy: bool,
    /// The deferred workers fail at every step.
    pub deferred_fails: bool,
    /// A repair of ours deleted a block that its node should keep: (node, item).
    pub deleted_by_us: Vec<(usize, usize)>,
    /// Repairs take this long at most.
    pub slowness: i64,
    /// Chance.
    pub rng: Rng,
}

fn bit(i: usize) -> Set {
    1 << i
}

/// A made-up identity.
pub fn identity(n: usize) -> NodeId {
    let mut bytes = [0u8; 32];
    bytes[0] = u8::try_from(n + 1).unwrap_or(255).wrapping_mul(0x11);
    bytes[31] = u8::try_from(n).unwrap_or(0);
    NodeId::from_bytes(bytes)
}

impl Node {
    fn new(n: usize, remote: bool, storage: bool, now: i64) -> Self {
        Self {
            id: identity(n),
            remote,
            storage,
            alive: Alive::Up,
            started_at: now - 10_000,
            frozen_at: 0,
            pod: 1,
            restarts: 0,
            data_full: false,
            metadata_full: false,
            unmounted: None,
            items: 0,
            blocks: 0,
            corrupt: 0,
            queue: [NEVER; ITEMS],
            errored: 0,
            tries: [0; ITEMS],
            deferred: None,
            sync_ends: NEVER,
            sync_began: 0,
            sync_waiting: 0,
            sync_throttled: false,
            sync_errors: 0,
            sync_rpc_errors: 0,
            start_sync_at: NEVER,
            anti_entropy_at: now + 300,
            repairs: Vec::new(),
            next_worker: FIRST_REPAIR,
            late: Vec::new(),
            persistent_shown: 0,
            wakes_at: NEVER,
            last_scrub: None,
            undelivered: 0,
            faults: Vec::new(),
            item_lost_by: [None; ITEMS],
            block_lost_by: [None; ITEMS],
        }
    }

    /// Its resync worker has something due.
    pub fn resync_due(&self, now: i64) -> bool {
        self.queue.iter().any(|at| *at <= now)
    }

    /// Entries of its resync queue.
    pub fn queue_length(&self) -> usize {
        self.queue.iter().filter(|at| **at != NEVER).count()
    }

    /// Whether the sync that runs now may be the one that was launched then: a start-up or backed-off pass
    /// is Garage's own.
    pub fn start_of_sync_is_ours(&self, launched_at: i64) -> bool {
        self.sync_began <= launched_at + 1 && !self.sync_throttled
    }

    /// Its table sync runs or waits.
    pub fn syncing(&self) -> bool {
        self.sync_ends != NEVER || self.sync_waiting > 0
    }

    fn open_fault(&mut self, kind: FaultKind) {
        if self.faults.iter().any(|f| f.kind == kind && !f.over) {
            return;
        }
        if self.faults.len() < 255 {
            self.faults.push(Fault { kind, observed: false, over: false });
        }
    }

    fn close_fault(&mut self, kind: FaultKind) {
        for f in self.faults.iter_mut().filter(|f| f.kind == kind) {
            f.over = true;
        }
    }

    /// Marks what an observation showed.
    pub fn observe_fault(&mut self, kind: FaultKind) {
        for f in self.faults.iter_mut().filter(|f| f.kind == kind && !f.over) {
            f.observed = true;
        }
    }

    fn fault(&self, kind: FaultKind) -> Option<u8> {
        self.faults.iter().rposition(|f| f.kind == kind).and_then(|i| u8::try_from(i).ok())
    }
}

impl Garage {
    /// A settled cluster of `local` and `remote` storage nodes that all have the first items.
    pub fn new(seed: u64, version: GarageVersion, local: usize, remote: usize) -> Self {
        let now = 1_800_000_000;
        let n = local + remote;
        let mut g = Self {
            now,
            version,
            rpc_timeout: 300,
            nodes: (0..n).map(|i| Node::new(i, i >= local, true, now)).collect(),
            layout: Layout { version: 1, draining_until: None, staged: false, tag: 0, capacity: 1 << 40 },
            cuts: Vec::new(),
            seen: vec![vec![(true, NEVER, true); n]; n],
            acknowledged: 0,
            written: 0,
            anti_entropy: false,
            busy: false,
            deferred_fails: false,
            deleted_by_us: Vec::new(),
            slowness: 90,
            rng: Rng::new(seed),
        };
        for _ in 0..3 {
            g.write();
        }
        for node in &mut g.nodes {
            node.queue = [NEVER; ITEMS];
        }
        g
    }

    /// Whether two processes reach each other now.
    pub fn linked(&self, a: usize, b: usize) -> bool {
        a == b || !self.cuts.contains(&(a.min(b), a.max(b)))
    }

    fn reaches(&self, a: usize, b: usize) -> bool {
        self.linked(a, b) && self.nodes[b].alive == Alive::Up && self.nodes[a].alive == Alive::Up
    }

    /// Whether `observer` counts `target` as up (with its lag).
    pub fn sees_up(&self, observer: usize, target: usize) -> bool {
        observer == target || self.seen[observer][target].0
    }

    /// Something changed between two processes: the observers notice later (FACTS 9, 14).
    fn notice(&mut self, lag_down: (i64, i64)) {
        let n = self.nodes.len();
        for o in 0..n {
            for t in 0..n {
                if o == t {
                    continue;
                }
                let truth = self.linked(o, t)
                    && self.nodes[t].alive == Alive::Up
                    && self.nodes[o].alive != Alive::Down;
                let (up, at, next) = self.seen[o][t];
                let heading = if at == NEVER { up } else { next };
                if heading != truth {
                    let lag = if truth {
                        self.rng.between(1, 30)
                    } else {
                        self.rng.between(lag_down.0, lag_down.1)
                    };
                    self.seen[o][t] = if up == truth { (up, NEVER, up) } else { (up, self.now + lag, truth) };
                }
            }
        }
    }

    // ---- what clients and people do

    /// A client writes one object; quorum 2 of 3 in the model, whatever the number of nodes.
    pub fn write(&mut self) {
        let i = self.written;
        if i >= ITEMS {
            return;
        }
        let n = self.nodes.len();
        let start = usize::try_from(self.rng.below(n as u64)).unwrap_or(0);
        let Some(writer) = (0..n)
            .map(|k| (start + k) % n)
            .find(|w| self.nodes[*w].alive == Alive::Up && self.nodes[*w].storage)
        else {
            return;
        };
        let now = self.now;
        let due = now + 2 * self.rpc_timeout;
        let mut copies = 0;
        let mut lost: Vec<(usize, FaultKind)> = Vec::new();
        for x in 0..n {
            if !self.nodes[x].storage {
                continue;
            }
            if !self.linked(writer, x) {
                lost.push((x, FaultKind::Cut(writer)));
                continue;
            }
            match self.nodes[x].alive {
                Alive::Down => lost.push((x, FaultKind::Down)),
                Alive::Frozen => {
                    self.nodes[x].undelivered |= bit(i);
                    lost.push((x, FaultKind::Frozen));
                }
                // For some seconds after a quick start a write may go to the dead connection (FACTS 9).
                Alive::Up if x != writer && now - self.nodes[x].started_at < 10 && self.rng.one_in(2) => {
                    lost.push((x, FaultKind::Down));
                }
                Alive::Up => {
                    let node = &mut self.nodes[x];
                    if node.metadata_full {
                        node.item_lost_by[i] = node.fault(FaultKind::MetadataFull);
                    } else {
                        node.items |= bit(i);
                        node.queue[i] = due;
                        copies += 1;
                    }
                    if node.data_full {
                        node.block_lost_by[i] = node.fault(FaultKind::DataFull);
                        if self.version == GarageVersion::V200 {
                            node.blocks |= bit(i);
                            node.corrupt |= bit(i);
                        }
                    } else {
                        node.blocks |= bit(i);
                    }
                }
            }
        }
        for (x, kind) in lost {
            let node = &mut self.nodes[x];
            node.item_lost_by[i] = node.fault(kind);
            node.block_lost_by[i] = node.item_lost_by[i];
        }
        let storage = self.nodes.iter().filter(|n| n.storage).count();
        self.written += 1;
        if copies >= 2.min(storage) {
            self.acknowledged |= bit(i);
        }
    }

    /// The process dies.
    pub fn kill(&mut self, x: usize) {
        if self.nodes[x].alive == Alive::Down {
            return;
        }
        let node = &mut self.nodes[x];
        if node.alive == Alive::Frozen {
            node.close_fault(FaultKind::Frozen);
        }
        node.alive = Alive::Down;
        node.open_fault(FaultKind::Down);
        node.repairs.clear();
        node.late.clear();
        node.deferred = None;
        node.sync_ends = NEVER;
        node.sync_waiting = 0;
        node.sync_throttled = false;
        node.start_sync_at = NEVER;
        node.undelivered = 0;
        self.notice((0, 10));
    }

    /// It starts again: the same container restarted, or in a new Pod. IDs and counters begin again (FACTS 6).
    pub fn start(&mut self, x: usize, new_pod: bool) {
        if self.nodes[x].alive != Alive::Down {
            return;
        }
        let now = self.now;
        let node = &mut self.nodes[x];
        node.alive = Alive::Up;
        node.started_at = now;
        node.next_worker = FIRST_REPAIR;
        node.sync_errors = 0;
        node.sync_rpc_errors = 0;
        node.persistent_shown = 0;
        node.start_sync_at = now + 20;
        node.close_fault(FaultKind::Down);
        // A restart always shows: another Pod, or one more restart of the container.
        for f in node.faults.iter_mut().filter(|f| f.kind == FaultKind::Down) {
            f.observed = true;
        }
        if new_pod {
            node.pod += 1;
            node.restarts = 0;
        } else {
            node.restarts += 1;
        }
        for i in 0..ITEMS {
            if node.errored & bit(i) != 0 {
                node.queue[i] = now;
            }
        }
        self.notice((0, 10));
    }

    /// SIGSTOP.
    pub fn freeze(&mut self, x: usize) {
        if self.nodes[x].alive == Alive::Up {
            self.nodes[x].alive = Alive::Frozen;
            self.nodes[x].frozen_at = self.now;
            self.nodes[x].open_fault(FaultKind::Frozen);
            self.notice((56, 80));
        }
    }

    /// SIGCONT: what was in flight arrives, launches included (FACTS 10).
    pub fn thaw(&mut self, x: usize) {
        if self.nodes[x].alive != Alive::Frozen {
            return;
        }
        let due = self.now + 2 * self.rpc_timeout;
        let now = self.now;
        let node = &mut self.nodes[x];
        node.alive = Alive::Up;
        if now - node.frozen_at < 56 && !node.metadata_full {
            for i in 0..ITEMS {
                if node.undelivered & bit(i) != 0 {
                    node.items |= bit(i);
                    node.queue[i] = due;
                    if !node.data_full {
                        node.blocks |= bit(i);
                    }
                }
            }
        }
        node.undelivered = 0;
        node.close_fault(FaultKind::Frozen);
        self.notice((0, 10));
    }

    /// Two nodes no longer reach each other.
    pub fn cut(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        if a != b && !self.cuts.contains(&pair) {
            self.cuts.push(pair);
            self.nodes[a].open_fault(FaultKind::Cut(b));
            self.nodes[b].open_fault(FaultKind::Cut(a));
            self.notice((70, 90));
        }
    }

    /// All links are whole again.
    pub fn heal(&mut self) {
        for (a, b) in std::mem::take(&mut self.cuts) {
            self.nodes[a].close_fault(FaultKind::Cut(b));
            self.nodes[b].close_fault(FaultKind::Cut(a));
        }
        self.notice((70, 90));
    }

    /// Fills a disk, or makes room.
    pub fn fill(&mut self, x: usize, data: bool, full: bool) {
        let node = &mut self.nodes[x];
        let kind = if data { FaultKind::DataFull } else { FaultKind::MetadataFull };
        if full {
            node.open_fault(kind);
        } else {
            node.close_fault(kind);
        }
        if data {
            node.data_full = full;
        } else {
            node.metadata_full = full;
        }
    }

    /// The data disk goes from under the running process: what comes now lies beneath.
    pub fn unmount(&mut self, x: usize) {
        let node = &mut self.nodes[x];
        if node.unmounted.is_none() && node.alive == Alive::Up {
            node.open_fault(FaultKind::Unmounted);
            let fault = node.fault(FaultKind::Unmounted);
            for i in 0..ITEMS {
                if node.blocks & bit(i) != 0 {
                    node.block_lost_by[i] = fault;
                }
            }
            node.unmounted = Some(node.blocks);
            node.blocks = 0;
        }
    }

    /// It is mounted again: the blocks of the meantime are missing, and nothing says so (FACTS 15).
    pub fn mount(&mut self, x: usize) {
        let node = &mut self.nodes[x];
        if let Some(hidden) = node.unmounted.take() {
            let fault = node.fault(FaultKind::Unmounted);
            for i in 0..ITEMS {
                if node.blocks & bit(i) != 0 && hidden & bit(i) == 0 {
                    node.block_lost_by[i] = fault;
                }
            }
            node.blocks = hidden;
            node.close_fault(FaultKind::Unmounted);
        }
    }

    /// Files vanish from a data disk.
    pub fn lose_blocks(&mut self, x: usize, which: Set) {
        let node = &mut self.nodes[x];
        node.open_fault(FaultKind::Silent);
        let fault = node.fault(FaultKind::Silent);
        for i in 0..ITEMS {
            if node.blocks & which & bit(i) != 0 {
                node.block_lost_by[i] = fault;
            }
        }
        node.blocks &= !which;
        node.close_fault(FaultKind::Silent);
    }

    /// Items that some node has and whose block is nowhere any more.
    pub fn lost_everywhere(&self) -> Set {
        let here = || self.nodes.iter().filter(|n| n.storage);
        let can_give = self.nodes.iter().filter(|n| n.storage || n.alive == Alive::Up);
        let blocks = can_give.fold(0, |s, n| s | (n.blocks & !n.corrupt));
        here().fold(0, |s, n| s | n.items) & !blocks
    }

    /// Somebody retries all errors. 2.5.0: the list is empty at once and nobody is woken (FACTS 8).
    pub fn retry_errors(&mut self, x: usize) {
        let wakes = if self.version == GarageVersion::V250 { self.now + 60 } else { self.now };
        let node = &mut self.nodes[x];
        if node.alive == Alive::Up {
            for i in 0..ITEMS {
                if node.errored & bit(i) != 0 {
                    node.queue[i] = wakes;
                    node.tries[i] = 0;
                }
            }
            node.errored = 0;
            node.wakes_at = wakes;
        }
    }

    /// A whole scrub: what lies there wrong is found and fetched again.
    pub fn scrub(&mut self, x: usize) {
        let now = self.now;
        let node = &mut self.nodes[x];
        if node.alive == Alive::Up {
            node.last_scrub = Some(now);
            for i in 0..ITEMS {
                if node.corrupt & bit(i) != 0 {
                    node.blocks &= !bit(i);
                    node.queue[i] = now;
                }
            }
            node.corrupt = 0;
        }
    }

    /// One more version with other tags or another capacity; it settles some seconds later.
    pub fn change_layout(&mut self, tags_only: bool) {
        self.layout.version += 1;
        if tags_only {
            self.layout.tag += 1;
        } else {
            self.layout.capacity += 1 << 30;
        }
        self.settle_later();
    }

    fn settle_later(&mut self) {
        self.layout.draining_until = Some(self.now + self.rng.between(2, 100));
        self.layout.staged = false;
        for x in 0..self.nodes.len() {
            if self.nodes[x].alive == Alive::Up && self.rng.one_in(2) {
                self.ask_sync(x);
            }
        }
    }

    /// One version takes a dead node's role for an empty new identity (the refill, FACTS 5). Its metadata
    /// comes with the syncs, and a settled history does not say that it did (FACTS 1.3).
    pub fn replace(&mut self, x: usize) {
        if self.nodes[x].alive != Alive::Down || !self.nodes[x].storage || self.nodes.len() > 6 {
            return;
        }
        let n = self.nodes.len();
        let mut new = Node::new(n, self.nodes[x].remote, true, self.now);
        new.started_at = self.now;
        self.nodes[x].storage = false;
        for row in &mut self.seen {
            row.push((true, NEVER, true));
        }
        self.seen.push(vec![(true, NEVER, true); n + 1]);
        self.nodes.push(new);
        for o in 0..n {
            self.seen[n][o].0 = self.nodes[o].alive == Alive::Up;
        }
        self.layout.version += 1;
        self.settle_later();
    }

    // ---- repairs

    /// A tables repair begins on a node: one more full pass (FACTS 7).
    pub fn ask_sync(&mut self, x: usize) {
        if self.nodes[x].alive == Alive::Down {
            return;
        }
        let node = &mut self.nodes[x];
        if node.sync_ends == NEVER {
            let ends = self.now + self.sync_duration(x);
            self.nodes[x].sync_ends = ends;
            self.nodes[x].sync_began = self.now;
        } else if node.sync_waiting < 3 {
            node.sync_waiting += 1;
        }
    }

    fn sync_duration(&mut self, x: usize) -> i64 {
        // A peer that is gone but still counts as up stalls the pass for the RPC timeout (FACTS 7, 14).
        let stalled = (0..self.nodes.len()).any(|y| {
            y != x
                && self.nodes[y].storage
                && !self.reaches(x, y)
                && self.sees_up(x, y)
                && self.nodes[y].alive != Alive::Down
        });
        let own = 1 + self.rng.between(0, self.slowness / 2);
        if stalled { own + self.rpc_timeout } else { own }
    }

    /// A blocks repair begins on a node.
    pub fn begin_blocks(&mut self, x: usize, ours: bool, errors: u64) {
        let ends_at = self.now + 1 + self.rng.between(0, self.slowness);
        if self.nodes[x].alive == Alive::Down {
            return;
        }
        let lacked = self.missing(x) & !self.nodes[x].items;
        let node = &mut self.nodes[x];
        let id = node.next_worker;
        node.next_worker += 1;
        node.repairs.push(RepairRun { id, ends_at, done: false, errors, ours, lacked });
    }

    /// A launch that is executed only later (FACTS 10).
    pub fn begin_later(&mut self, x: usize, blocks: bool, after: i64) {
        let at = self.now + after;
        self.nodes[x].late.push((at, blocks));
    }

    // ---- time

    /// Lets time pass, everything in its order.
    pub fn advance(&mut self, seconds: i64) {
        let end = self.now + seconds.max(0);
        loop {
            let next = self.next_event();
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.happen();
        }
        self.now = end;
    }

    fn next_event(&self) -> i64 {
        let mut next = self.layout.draining_until.unwrap_or(NEVER);
        for row in &self.seen {
            for (_, at, _) in row {
                next = next.min(*at);
            }
        }
        for node in self.nodes.iter().filter(|n| n.alive == Alive::Up) {
            next = next.min(node.sync_ends).min(node.start_sync_at).min(node.wakes_at);
            if self.anti_entropy {
                next = next.min(node.anti_entropy_at);
            }
            next = next.min(node.deferred.map_or(NEVER, |d| d.0));
            next = node.queue.iter().fold(next, |n, at| n.min(*at));
            next = node.repairs.iter().filter(|r| !r.done).fold(next, |n, r| n.min(r.ends_at));
            next = node.late.iter().fold(next, |n, l| n.min(l.0));
        }
        next
    }

    fn happen(&mut self) {
        let now = self.now;
        if self.layout.draining_until.is_some_and(|t| t <= now) {
            self.layout.draining_until = None;
        }
        for row in &mut self.seen {
            for cell in row.iter_mut().filter(|c| c.1 <= now) {
                *cell = (cell.2, NEVER, cell.2);
            }
        }
        for x in 0..self.nodes.len() {
            if self.nodes[x].alive != Alive::Up {
                continue;
            }
            if self.nodes[x].start_sync_at <= now {
                self.nodes[x].start_sync_at = NEVER;
                self.ask_sync(x);
            }
            if self.nodes[x].anti_entropy_at <= now {
                self.nodes[x].anti_entropy_at = now + self.rng.between(593, 611);
                if self.anti_entropy {
                    self.ask_sync(x);
                }
            }
            if self.nodes[x].wakes_at <= now {
                self.nodes[x].wakes_at = NEVER;
            }
            let due: Vec<(i64, bool)> = {
                let late = &mut self.nodes[x].late;
                let due = late.iter().copied().filter(|l| l.0 <= now).collect();
                late.retain(|l| l.0 > now);
                due
            };
            for (_, blocks) in due {
                if blocks { self.begin_blocks(x, true, 0) } else { self.ask_sync(x) }
            }
            if self.nodes[x].sync_ends <= now {
                self.end_sync(x);
            }
            self.end_repairs(x);
            if self.nodes[x].deferred.is_some_and(|d| d.0 <= now)
                && let Some((_, found)) = self.nodes[x].deferred.take()
            {
                // 2.5.0: one entry a block, the later time wins.
                for i in (0..ITEMS).filter(|i| found & bit(*i) != 0) {
                    if self.nodes[x].queue[i] == NEVER {
                        self.nodes[x].queue[i] = now;
                    }
                }
            }
            self.resync(x);
        }
    }

    /// A pass pushes what the node has to whom it reaches; it counts as done with a quorum (FACTS 1.3, 1.4).
    fn end_sync(&mut self, x: usize) {
        let now = self.now;
        let due = now + 2 * self.rpc_timeout;
        let mine = self.nodes[x].items;
        let (mut peers, mut missed) = (0, 0);
        for y in 0..self.nodes.len() {
            if y == x || !self.nodes[y].storage {
                continue;
            }
            peers += 1;
            let dead_connection = now - self.nodes[y].started_at < 8 && self.rng.one_in(2);
            if !self.reaches(x, y) || self.nodes[y].metadata_full || dead_connection {
                missed += 1;
                continue;
            }
            let node = &mut self.nodes[y];
            for i in (0..ITEMS).filter(|i| mine & !node.items & bit(*i) != 0) {
                node.queue[i] = due;
            }
            node.items |= mine;
        }
        let node = &mut self.nodes[x];
        node.sync_rpc_errors += missed;
        if peers > 0 && missed > peers / 2 {
            node.sync_errors += 1;
            node.sync_throttled = true;
            node.sync_ends = now + 45;
            return;
        }
        node.sync_throttled = false;
        node.sync_ends = NEVER;
        if node.sync_waiting > 0 {
            node.sync_waiting -= 1;
            self.ask_sync(x);
        }
    }

    fn end_repairs(&mut self, x: usize) {
        let now = self.now;
        let mut ended = None;
        for r in self.nodes[x].repairs.iter_mut().filter(|r| !r.done && r.ends_at <= now) {
            r.done = true;
            ended = Some(ended.unwrap_or(0) | if r.ours { r.lacked } else { 0 });
        }
        let Some(lacked) = ended else { return };
        // Blocks without a reference go at once (FACTS 1.12).
        let unreferenced = self.nodes[x].blocks & !self.nodes[x].items;
        let ours = unreferenced & lacked;
        self.deleted_by_us.extend((0..ITEMS).filter(|i| ours & bit(*i) != 0).map(|i| (x, i)));
        let node = &mut self.nodes[x];
        node.blocks &= !unreferenced;
        let found = node.items & !node.blocks;
        match self.version {
            GarageVersion::V250 => {
                let before = node.deferred.map_or(0, |d| d.1);
                node.deferred = Some((now + 2, before | found)).filter(|d| d.1 != 0);
            }
            GarageVersion::V200 => {
                for i in (0..ITEMS).filter(|i| found & bit(*i) != 0) {
                    node.queue[i] = now;
                }
            }
        }
    }

    fn resync(&mut self, x: usize) {
        let now = self.now;
        let mut stepped = false;
        for i in 0..ITEMS {
            if self.nodes[x].queue[i] > now {
                continue;
            }
            stepped = true;
            self.nodes[x].queue[i] = NEVER;
            let wanted = self.nodes[x].items & bit(i) != 0 && self.nodes[x].blocks & bit(i) == 0;
            let source = (0..self.nodes.len()).any(|y| {
                y != x && self.reaches(x, y) && self.nodes[y].blocks & !self.nodes[y].corrupt & bit(i) != 0
            });
            let silent_loss = self.version == GarageVersion::V200 && self.nodes[x].data_full;
            let node = &mut self.nodes[x];
            if !wanted {
                node.errored &= !bit(i);
            } else if source && silent_loss {
                node.blocks |= bit(i);
                node.corrupt |= bit(i);
                node.errored &= !bit(i);
                node.block_lost_by[i] = node.fault(FaultKind::DataFull);
            } else if source && !node.data_full {
                node.blocks |= bit(i);
                node.errored &= !bit(i);
                node.tries[i] = 0;
            } else {
                node.errored |= bit(i);
                node.queue[i] = now + (60i64 << node.tries[i].min(6));
                node.tries[i] += 1;
            }
        }
        if stepped {
            self.nodes[x].persistent_shown = self.nodes[x].errored.count_ones();
        }
    }

    // ---- truth

    /// Acknowledged items that a node does not have whole, and that an observation could have known of.
    pub fn missing(&self, x: usize) -> Set {
        let node = &self.nodes[x];
        // What no node of the layout has any more is lost, and nothing can know of it.
        let somewhere = self.nodes.iter().filter(|n| n.storage).fold(0, |s, n| s | n.items);
        let bad = self.acknowledged & somewhere & !(node.items & node.blocks & !node.corrupt);
        let unseen =
            |f: Option<u8>| f.and_then(|f| node.faults.get(usize::from(f))).is_some_and(|f| !f.observed);
        (0..ITEMS)
            .filter(|i| bad & bit(*i) != 0)
            .filter(|i| {
                let by =
                    if node.items & bit(*i) == 0 { node.item_lost_by[*i] } else { node.block_lost_by[*i] };
                !unseen(by)
            })
            .fold(0, |s, i| s | bit(i))
    }

    /// A proof starts: whatever is missing now is for it to find.
    pub fn forgive_nothing(&mut self) {
        for node in &mut self.nodes {
            for f in &mut node.faults {
                f.observed = f.observed || f.over;
            }
        }
    }
}
