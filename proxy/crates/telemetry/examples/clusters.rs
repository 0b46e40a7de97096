//! What the metrics of one cluster that comes and goes cost among those of many others.
//!
//! ```sh
//! cargo run --release -p heddle-telemetry --example clusters
//! ```

use std::time::Instant;

use heddle_telemetry::{Counter, Owner, Stats};

/// About as many as a cluster has.
const METRICS: [&str; 45] = {
    let mut names = ["metric"; 45];
    let all = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS";
    let mut at = 0;
    while at < names.len() {
        names[at] = all.split_at(at + 1).0;
        at += 1;
    }
    names
};

fn cluster(stats: &Stats, name: &str) -> Vec<Counter> {
    METRICS
        .iter()
        .map(|metric| stats.counter(metric, &[("cluster_name", name)]))
        .collect()
}

fn main() {
    for others in [50, 500, 4000] {
        let stats = Stats::new();
        for number in 0..others {
            cluster(&stats, &format!("outbound|80||service-{number}.shop.svc.cluster.local"));
        }
        const ROUNDS: u32 = 200;
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            cluster(&stats, "outbound|80||new.shop.svc.cluster.local");
            stats.remove(Owner::Cluster, "outbound|80||new.shop.svc.cluster.local");
        }
        println!("among {others} clusters: {:?}", begin.elapsed() / ROUNDS);
    }
}
