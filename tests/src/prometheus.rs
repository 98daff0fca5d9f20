//! A real Prometheus that scrapes what it is told to: `start`, then `query`. It ends when it is dropped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bed::assets;
use crate::chart::built;
use crate::error::{Doing as _, Error, Result};
use crate::stand_in::free_port;

/// How often it scrapes: a rate over minutes has a value after two scrapes.
const INTERVAL: &str = "2s";
/// How long it may take to start, and to scrape every target twice.
const WITHIN: Duration = Duration::from_secs(120);

/// A page to scrape, plain HTTP.
#[derive(Debug, Clone)]
pub struct Target {
    /// The label `job`.
    pub job: String,
    /// Where.
    pub address: SocketAddr,
    /// The page, such as `/metrics`.
    pub path: String,
    /// The bearer token that the page asks for, if any.
    pub token: Option<String>,
}

impl Target {
    /// `/metrics` at an address.
    pub fn new(job: &str, address: SocketAddr) -> Self {
        Self { job: job.to_owned(), address, path: "/metrics".to_owned(), token: None }
    }
}

/// A running Prometheus.
pub struct Prometheus {
    folder: tempfile::TempDir,
    process: Child,
    address: SocketAddr,
    http: reqwest::Client,
}

impl Prometheus {
    /// Starts one with these targets and with `rules` (the `spec` of a PrometheusRule), and waits until it has
    /// scraped each target twice. `None`, with a line that says so, where it is not built and no bed is wanted either.
    ///
    /// # Errors
    /// It did not come so far in time: with its log, or with why a target could not be scraped.
    pub async fn start(targets: &[Target], rules: Option<&Value>) -> Result<Option<Self>> {
        let Some(binary) = built(assets::prometheus("prometheus"))? else { return Ok(None) };
        let folder = tempfile::tempdir().doing(|| "making a folder")?;
        let jobs: Vec<Value> = targets.iter().map(job).collect();
        let mut configuration = json!({
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "scrape_configs": jobs,
        });
        if let Some(rules) = rules {
            let text = serde_json::to_string(rules).map_err(|e| Error::other(format!("the rules: {e}")))?;
            std::fs::write(folder.path().join("rules.json"), text).doing(|| "writing the rules")?;
            configuration["rule_files"] = json!(["rules.json"]);
        }
        // JSON is YAML.
        std::fs::write(folder.path().join("prometheus.yaml"), configuration.to_string())
            .doing(|| "writing a configuration")?;
        let log = std::fs::File::create(folder.path().join("log")).doing(|| "creating a log")?;
        let address = free_port()?;
        let process = Command::new(binary)
            .arg(format!("--config.file={}", folder.path().join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .doing(|| "starting Prometheus")?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()
            .doing(|| "making an HTTP client")?;
        let running = Self { folder, process, address, http };
        running.scraped(targets.len()).await?;
        Ok(Some(running))
    }

    /// The series of an instant vector now, each with `metric` and `value`; of a scalar one without `metric`.
    ///
    /// # Errors
    /// Prometheus refuses the query, in its words.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.get("query", &[("query", expression)]).await?;
        Ok(match data["result"].as_array() {
            Some(series) if data["resultType"] == "vector" || data["resultType"] == "matrix" => {
                series.clone()
            }
            _ => vec![json!({ "value": data["result"] })],
        })
    }

    /// The names of all metrics that it has.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn names(&self) -> Result<BTreeSet<String>> {
        Ok(words(&self.get("label/__name__/values", &[]).await?))
    }

    /// The names of the metrics that an expression selects, as Prometheus' own parser reads it.
    ///
    /// # Errors
    /// It is no expression, in Prometheus' words.
    pub async fn selected(&self, expression: &str) -> Result<BTreeSet<String>> {
        fn walk(node: &Value, out: &mut BTreeSet<String>) {
            match node {
                Value::Object(fields) => {
                    if fields
                        .get("type")
                        .is_some_and(|kind| kind == "vectorSelector" || kind == "matrixSelector")
                        && let Some(name) = fields.get("name").and_then(Value::as_str)
                    {
                        out.insert(name.to_owned());
                    }
                    fields.values().for_each(|field| walk(field, out));
                }
                Value::Array(items) => items.iter().for_each(|item| walk(item, out)),
                _ => {}
            }
        }
        let mut names = BTreeSet::new();
        walk(&self.get("parse_query", &[("query", expression)]).await?, &mut names);
        Ok(names)
    }

    /// Every rule with its `name`, `query`, `health` and `lastError`, evaluated at least once.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn rules(&self) -> Result<Vec<Value>> {
        let begun = Instant::now();
        loop {
            let data = self.get("rules", &[]).await?;
            let groups = data["groups"].as_array().into_iter().flatten();
            let rules: Vec<Value> =
                groups.flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect();
            if rules.iter().all(|rule| rule["health"] != "unknown") {
                return Ok(rules);
            }
            if begun.elapsed() > WITHIN {
                return Err(Error::other(format!("not every rule was evaluated: {data}")));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// One endpoint of the HTTP API under `/api/v1/`: its `data`.
    ///
    /// # Errors
    /// It does not answer, or refuses, in its words.
    pub async fn get(&self, endpoint: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let url = format!("http://{}/api/v1/{endpoint}", self.address);
        let url = reqwest::Url::parse_with_params(&url, parameters)
            .map_err(|error| Error::other(format!("{url}: {error}")))?;
        let answer = self.http.get(url).send().await.doing(|| format!("asking Prometheus for {endpoint}"))?;
        let mut body: Value = answer.json().await.doing(|| format!("reading Prometheus' {endpoint}"))?;
        if body["status"] != "success" {
            return Err(Error::other(format!("{endpoint} {parameters:?}: {}", body["error"])));
        }
        Ok(body["data"].take())
    }

    /// Waits until every target was scraped twice.
    async fn scraped(&self, targets: usize) -> Result<()> {
        let begun = Instant::now();
        let mut said = String::new();
        while begun.elapsed() < WITHIN {
            match self.query("count_over_time(up[5m]) >= 2 and up == 1").await {
                Ok(up) if up.len() >= targets => return Ok(()),
                Ok(_) => {}
                Err(error) => said = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        if let Ok(data) = self.get("targets", &[]).await {
            for target in data["activeTargets"].as_array().into_iter().flatten() {
                let _ = write!(said, "\n{}: {}", target["scrapeUrl"], target["lastError"]);
            }
        }
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        Err(Error::other(format!("Prometheus has not scraped every target: {said}\n{log}")))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn job(target: &Target) -> Value {
    let mut job = json!({
        // Several targets of one job have configurations of their own, whose names must differ.
        "job_name": format!("{}-{}", target.job, target.address),
        "honor_labels": true, "metrics_path": target.path,
        "static_configs": [{"targets": [target.address.to_string()], "labels": {"job": target.job}}],
    });
    if let Some(token) = &target.token {
        job["authorization"] = json!({ "credentials": token });
    }
    job
}

fn words(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
}
