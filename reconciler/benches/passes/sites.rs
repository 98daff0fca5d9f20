//! Settled sites in a process of their own: their objects behind an API server that lists, reads and patches, and their
//! Garage processes behind an Admin API, each at a loopback address of its own.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use holdfast_crds::ids::NodeId;
use holdfast_reconciler::act::Kind;
use holdfast_reconciler::observe::Core;
use holdfast_reconciler::sim::pools::{self, World};
use serde_json::{Value, json};

/// What one Garage site answers.
struct Site {
    by_call: HashMap<&'static str, String>,
}

/// Everything that is served.
struct Served {
    /// Objects by the path of their list, then by name.
    objects: Mutex<HashMap<&'static str, BTreeMap<String, Value>>>,
    sites: Vec<Site>,
    identities: HashMap<IpAddr, (usize, NodeId)>,
    reads: AtomicU64,
    writes: AtomicU64,
    calls: AtomicU64,
}

const LISTS: [(Kind, &str, &str); 9] = [
    (Kind::GarageCluster, "garage.rajsingh.info/v1beta2", "garageclusters"),
    (Kind::GarageNode, "garage.rajsingh.info/v1beta1", "garagenodes"),
    (Kind::Pod, "v1", "pods"),
    (Kind::Node, "v1", "nodes"),
    (Kind::DaemonSet, "apps/v1", "daemonsets"),
    (Kind::ConfigMap, "v1", "configmaps"),
    (Kind::Service, "v1", "services"),
    (Kind::PodDisruptionBudget, "policy/v1", "poddisruptionbudgets"),
    (Kind::Secret, "v1", "secrets"),
];

/// Serves `clusters` sites of `nodes` nodes each, until standard input ends.
pub fn serve(clusters: usize, nodes: usize) {
    let garage = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = garage.local_addr().unwrap().port();
    let mut served = Served {
        objects: Mutex::default(),
        sites: Vec::new(),
        identities: HashMap::new(),
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    };
    for cluster in 0..clusters {
        add(&mut served, cluster, nodes, port);
    }
    let served = Arc::new(served);
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("serves {}", api.local_addr().unwrap());
    for (listener, answer) in [(api, kubernetes as Answerer), (garage, admin as Answerer)] {
        let served = served.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                thread::spawn(move || connection(&stream, &served, answer));
            }
        });
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn address(cluster: usize, node: usize) -> IpAddr {
    let byte = |n: usize| u8::try_from(n).unwrap();
    // 127.0.0.0/16 is left to everybody else.
    let number = cluster * 256 + node;
    Ipv4Addr::new(127, byte(1 + number / 65536), byte(number / 256 % 256), byte(number % 256)).into()
}

/// A site that the pools have built, and that has nothing left to do.
fn add(served: &mut Served, cluster: usize, nodes: usize, port: u16) {
    let mut spec = pools::cluster();
    let name = format!("site-{cluster}");
    spec["metadata"]["name"] = json!(name);
    spec["metadata"]["uid"] = json!(format!("2b7c9e10-4d3f-4a6b-8c21-{cluster:012}"));
    spec["spec"]["storage"]["nodeLocalPools"][0]["selector"]["matchLabels"] = json!({ "site": name });
    let names: Vec<String> = (0..nodes).map(|n| format!("kn-{cluster}-{n:03}")).collect();
    let mut world = World::with(spec, &names.iter().map(String::as_str).collect::<Vec<_>>());
    world.settle();
    let number = served.sites.len();
    for (index, node) in world.disks.clone().keys().enumerate() {
        let at = address(cluster, index);
        served.identities.insert(at, (number, world.disks[node].id));
        let of_node = |pod: &&&Value| pod["spec"]["nodeName"] == json!(node);
        let pod = world.of(Kind::Pod).iter().find(of_node).unwrap()["metadata"]["name"].clone();
        world.edit(Kind::Pod, pod.as_str().unwrap(), |pod| {
            pod["status"]["podIP"] = json!(at.to_string());
            for container in pod["spec"]["containers"].as_array_mut().unwrap() {
                for open in container["ports"].as_array_mut().into_iter().flatten() {
                    if open["name"] == "admin" {
                        open["containerPort"] = json!(port);
                    }
                }
            }
        });
    }
    let core = world.garage().core.unwrap();
    served.sites.push(Site { by_call: answers(&core) });
    let objects = served.objects.get_mut().unwrap();
    for (kind, _, plural) in LISTS {
        let of_kind = world.of(kind).into_iter().map(|object| {
            (object["metadata"]["name"].as_str().unwrap().to_owned(), with_managed_fields(object.clone()))
        });
        objects.entry(plural).or_default().extend(of_kind);
    }
}

/// As an API server sends it: with what the caches are to drop.
fn with_managed_fields(mut object: Value) -> Value {
    object["metadata"]["managedFields"] = json!([{"manager": "garage-holdfast", "operation": "Update",
        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:filler": {"f:x".repeat(200): {}}}}}]);
    object
}

/// The Admin API of a healthy site, from what its layout says.
fn answers(core: &Core) -> HashMap<&'static str, String> {
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/garage/2.5.0/ListWorkers.json");
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(recorded).unwrap()).unwrap();
    let workers = recorded["success"].as_object().unwrap().values().next().unwrap();
    let count = core.layout.roles.len();
    let version = core.layout.version.0;
    let role = |id: &NodeId| {
        let role = &core.layout.roles[id];
        json!({"id": id.to_string(), "zone": role.zone, "tags": role.tags, "capacity": role.capacity})
    };
    let roles: Vec<Value> = core.layout.roles.keys().map(role).collect();
    let disk = json!({"available": 900_000_000_000u64, "total": 1_000_000_000_000u64});
    let nodes: Vec<Value> = roles
        .iter()
        .map(|role| {
            json!({"id": role["id"], "garageVersion": "cargo:2.5.0", "addr": "127.0.0.11:3901", "hostname": "host",
                "isUp": true, "lastSeenSecsAgo": 1, "draining": false, "dataPartition": disk,
                "metadataPartition": disk, "role": role})
        })
        .collect();
    let each = |value: &Value| {
        let success: serde_json::Map<_, _> =
            core.layout.roles.keys().map(|id| (id.to_string(), value.clone())).collect();
        json!({"success": success, "error": {}})
    };
    HashMap::from([
        (
            "GetClusterHealth",
            json!({"status": "healthy", "knownNodes": count, "connectedNodes": count, "storageNodes": count,
                "storageNodesUp": count, "partitions": 256, "partitionsQuorum": 256, "partitionsAllOk": 256}),
        ),
        ("GetClusterStatus", json!({"layoutVersion": version, "nodes": nodes})),
        (
            "GetClusterLayout",
            json!({"version": version, "roles": roles, "parameters": {"zoneRedundancy": "maximum"},
                "partitionSize": 7_812_500, "stagedRoleChanges": [], "stagedParameters": null}),
        ),
        (
            "GetClusterLayoutHistory",
            json!({"currentVersion": version, "minAck": version, "updateTrackers": null,
                "versions": [{"version": version, "status": "Current", "storageNodes": count, "gatewayNodes": 0}]}),
        ),
        ("ListWorkers", each(workers)),
        ("ListBlockErrors", each(&json!([]))),
    ])
    .into_iter()
    .map(|(call, answer)| (call, answer.to_string()))
    .collect()
}

struct Request {
    method: String,
    path: String,
    query: String,
    body: Vec<u8>,
}

type Answerer = fn(&Served, &TcpStream, &Request) -> Option<(u16, String)>;

fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split(' ');
    let (method, uri) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, body })
}

/// Answers request after request; `None` is a watch, on which nothing ever happens.
fn connection(stream: &TcpStream, served: &Served, answer: Answerer) {
    let _ = stream.set_nodelay(true);
    let mut writes = stream.try_clone().unwrap();
    let mut reads = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reads) {
        let Some((status, body)) = answer(served, stream, &request) else {
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            writes.write_all(head.as_bytes()).unwrap();
            let _ = reads.read(&mut [0]);
            return;
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if writes.write_all(&[head.as_bytes(), body.as_bytes()].concat()).is_err() {
            return;
        }
    }
}

fn kubernetes(served: &Served, _: &TcpStream, request: &Request) -> Option<(u16, String)> {
    if request.path == "/counts" {
        let counts = [&served.reads, &served.calls, &served.writes].map(|n| n.swap(0, Ordering::Relaxed));
        return Some((200, json!(counts).to_string()));
    }
    let parts: Vec<&str> = request.path.split('/').collect();
    let at = parts.iter().position(|part| LISTS.iter().any(|(_, _, plural)| part == plural)).unwrap();
    let (_, version, plural) = LISTS.iter().find(|(_, _, plural)| *plural == parts[at]).unwrap();
    let mut objects = served.objects.lock().unwrap();
    let objects = objects.get_mut(plural).unwrap();
    let Some(name) = parts.get(at + 1) else {
        if request.query.contains("watch=true") {
            return None;
        }
        // In pages, as the caches ask for them: a whole list at once would be most of their memory.
        let asked = |name: &str| {
            let value = request.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse::<usize>().ok())
        };
        let (begin, limit) = (asked("continue").unwrap_or(0), asked("limit").unwrap_or(usize::MAX));
        let items: Vec<&Value> = objects.values().skip(begin).take(limit).collect();
        let end = begin + items.len();
        let more = (end < objects.len()).then(|| end.to_string());
        let metadata = json!({"resourceVersion": "1", "continue": more});
        let list = json!({"apiVersion": version, "kind": "List", "metadata": metadata, "items": items});
        return Some((200, list.to_string()));
    };
    let Some(object) = objects.get_mut(*name) else {
        served.reads.fetch_add(1, Ordering::Relaxed);
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        return Some((404, status.to_string()));
    };
    if request.method == "GET" {
        served.reads.fetch_add(1, Ordering::Relaxed);
    } else {
        served.writes.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            (request.method.as_str(), parts.get(at + 2)),
            ("PATCH", Some(&"status")),
            "{}",
            request.path
        );
        let patch: Value = serde_json::from_slice(&request.body).unwrap();
        let before = object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        json_patch::merge(&mut object["status"], &patch["status"]);
        object["metadata"]["resourceVersion"] = json!((before + 1).to_string());
    }
    Some((200, object.to_string()))
}

#[allow(clippy::unnecessary_wraps)] // As the other answerer.
fn admin(served: &Served, stream: &TcpStream, request: &Request) -> Option<(u16, String)> {
    served.calls.fetch_add(1, Ordering::Relaxed);
    let (site, id) = served.identities[&stream.local_addr().unwrap().ip()];
    let call = request.path.trim_start_matches("/v2/");
    if call == "GetNodeInfo" {
        let id = id.to_string();
        let info =
            json!({"success": {id.clone(): {"nodeId": id, "garageVersion": "cargo:2.5.0"}}, "error": {}});
        return Some((200, info.to_string()));
    }
    match served.sites[site].by_call.get(call) {
        Some(answer) => Some((200, answer.clone())),
        None => panic!("{} {call}: nothing was to be done", request.method),
    }
}
