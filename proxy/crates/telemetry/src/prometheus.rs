//! Metrics of all workers added up, and their text forms.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::stats::{BUCKETS, Labels, Metric, StatsReader};

/// Most series in one answer, over all metrics; what is beyond it is left out and said so in a comment. Bounds the
/// memory that one scrape takes to some 100 MiB.
pub const MAX_SERIES: usize = 200_000;

/// A metric's value, added up over the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Sum of counters.
    Counter(u64),
    /// Sum of gauges.
    Gauge(i64),
    /// Merged distributions.
    Histogram {
        /// Counts per bucket of [`BUCKETS`], and above the last one. Not cumulative.
        buckets: [u64; BUCKETS.len() + 1],
        /// Sum of all values.
        sum: f64,
    },
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram { .. } => "histogram",
        }
    }

    fn add(&mut self, metric: &Metric) {
        match (self, metric) {
            (Self::Counter(sum), Metric::Counter(c)) => *sum = sum.wrapping_add(c.get()),
            (Self::Gauge(sum), Metric::Gauge(g)) => *sum = sum.wrapping_add(g.get()),
            (Self::Histogram { buckets, sum }, Metric::Histogram(h)) => {
                let (more, more_sum) = h.snapshot();
                for (bucket, n) in buckets.iter_mut().zip(more) {
                    *bucket = bucket.wrapping_add(n);
                }
                *sum += more_sum;
            }
            // One name with two kinds is a mistake of ours; the first kind seen wins.
            _ => debug_assert!(false, "a metric changes its kind between workers"),
        }
    }
}

impl From<&Metric> for Value {
    fn from(metric: &Metric) -> Self {
        match metric {
            Metric::Counter(c) => Self::Counter(c.get()),
            Metric::Gauge(g) => Self::Gauge(g.get()),
            Metric::Histogram(h) => {
                let (buckets, sum) = h.snapshot();
                Self::Histogram { buckets, sum }
            }
        }
    }
}

/// All metrics by name and labels, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    families: BTreeMap<&'static str, BTreeMap<Labels, Value>>,
    series: usize,
    left_out: usize,
}

impl Gathered {
    /// Reads all workers and adds up. `wanted` chooses by name.
    pub fn read(readers: &[StatsReader], wanted: impl Fn(&str) -> bool) -> Self {
        let mut all = Self::default();
        for reader in readers {
            reader.visit(|name, labels, metric| {
                if !wanted(name) {
                    return;
                }
                let family = all.families.entry(name).or_default();
                if let Some(value) = family.get_mut(labels) {
                    value.add(metric);
                } else if all.series < MAX_SERIES {
                    all.series += 1;
                    family.insert(labels.clone(), Value::from(metric));
                } else {
                    all.left_out += 1;
                }
            });
        }
        all
    }

    /// Sets a gauge that no worker keeps, such as `envoy_server_uptime`.
    pub fn set_gauge(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: i64) {
        self.insert(name, labels, Value::Gauge(value));
    }

    /// Sets a counter that no worker keeps.
    pub fn set_counter(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        self.insert(name, labels, Value::Counter(value));
    }

    fn insert(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: Value) {
        let labels = labels.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        self.families.entry(name).or_default().insert(labels, value);
    }

    /// Every metric, by name and labels.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Labels, &Value)> {
        self.families
            .iter()
            .flat_map(|(name, family)| family.iter().map(|(labels, value)| (*name, labels, value)))
    }

    /// The Prometheus text format, version 0.0.4. `used_only` leaves out what is still zero.
    pub fn prometheus(&self, used_only: bool) -> String {
        let mut out = String::with_capacity(self.series * 100);
        for (name, family) in &self.families {
            let mut shown = family
                .iter()
                .filter(|(_, value)| !used_only || value.is_used())
                .peekable();
            let Some((_, first)) = shown.peek() else {
                continue;
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "# TYPE {name} {}", first.kind());
            for (labels, value) in shown {
                match value {
                    Value::Counter(n) => {
                        series(&mut out, name, "", labels, None);
                        let _ = writeln!(out, "{n}");
                    }
                    Value::Gauge(n) => {
                        series(&mut out, name, "", labels, None);
                        let _ = writeln!(out, "{n}");
                    }
                    Value::Histogram { buckets, sum } => {
                        let mut count = 0_u64;
                        for (i, n) in buckets.iter().enumerate() {
                            count = count.wrapping_add(*n);
                            let bound = BUCKETS.get(i).map_or_else(|| "+Inf".to_owned(), f64::to_string);
                            series(&mut out, name, "_bucket", labels, Some(&bound));
                            let _ = writeln!(out, "{count}");
                        }
                        series(&mut out, name, "_sum", labels, None);
                        let _ = writeln!(out, "{sum}");
                        series(&mut out, name, "_count", labels, None);
                        let _ = writeln!(out, "{count}");
                    }
                }
            }
        }
        if self.left_out > 0 {
            let _ = writeln!(out, "# {} series beyond {MAX_SERIES} were left out", self.left_out);
        }
        out
    }

    /// One line per metric in the manner of Envoy's `/stats`: `cluster.name.upstream_cx_total: 3`.
    pub fn lines(&self, used_only: bool) -> String {
        let mut out = String::new();
        for (name, labels, value) in self.iter() {
            if used_only && !value.is_used() {
                continue;
            }
            let _ = match value {
                Value::Counter(n) => writeln!(out, "{}: {n}", dotted(name, labels)),
                Value::Gauge(n) => writeln!(out, "{}: {n}", dotted(name, labels)),
                Value::Histogram { buckets, sum } => {
                    let count: u64 = buckets.iter().sum();
                    writeln!(out, "{}: count={count} sum={sum}", dotted(name, labels))
                }
            };
        }
        out
    }
}

impl Value {
    fn is_used(&self) -> bool {
        match self {
            Self::Counter(n) => *n != 0,
            Self::Gauge(n) => *n != 0,
            Self::Histogram { buckets, .. } => buckets.iter().any(|n| *n != 0),
        }
    }
}

/// Envoy's dotted name: the first label's value stands behind the subsystem, the other labels in braces.
pub fn dotted(name: &str, labels: &Labels) -> String {
    let plain = name.strip_prefix("envoy_").unwrap_or(name);
    let mut out = String::new();
    let mut rest = labels.as_slice();
    match (plain.split_once('_'), labels.split_first()) {
        (Some((subsystem @ ("cluster" | "listener" | "http" | "tcp"), metric)), Some(((_, first), others)))
            if name.starts_with("envoy_") =>
        {
            let _ = write!(out, "{subsystem}.{first}.{metric}");
            rest = others;
        }
        (Some((subsystem, metric)), _) if name.starts_with("envoy_") => {
            let _ = write!(out, "{subsystem}.{metric}");
        }
        _ => out.push_str(plain),
    }
    for (i, (label, value)) in rest.iter().enumerate() {
        let _ = write!(out, "{}{label}={value}", if i == 0 { "{" } else { "," });
    }
    if !rest.is_empty() {
        out.push('}');
    }
    out
}

fn series(out: &mut String, name: &str, suffix: &str, labels: &Labels, bound: Option<&str>) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() || bound.is_some() {
        out.push('{');
        let all = labels
            .iter()
            .map(|(n, v)| (*n, v.as_str()))
            .chain(bound.map(|b| ("le", b)));
        for (i, (label, value)) in all.enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(label);
            out.push_str("=\"");
            escape(out, value);
            out.push('"');
        }
        out.push('}');
    }
    out.push(' ');
}

/// Label values: backslash, quote and line feed are escaped (Prometheus text format, "Comments, help text").
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::MAX_LABEL_SETS;
    use crate::{Owner, Stats};

    #[test]
    fn workers_add_up() {
        let (a, b) = (Stats::new(), Stats::new());
        for (stats, n) in [(&a, 2), (&b, 3)] {
            stats.counter("requests_total", &[("path", "a\"b\\c\nd")]).add(n);
            stats.gauge("active", &[]).set(-(n as i64));
            stats.histogram("size", &[("x", "y")]).record(n as f64);
        }
        b.counter("requests_total", &[("path", "other")]).inc();
        let all = Gathered::read(&[a.reader(), b.reader()], |_| true);
        let text = all.prometheus(false);
        let expected_counters = "# TYPE requests_total counter\nrequests_total{path=\"a\\\"b\\\\c\\nd\"} 5\n\
                                 requests_total{path=\"other\"} 1\n";
        assert!(text.contains(expected_counters), "{text}");
        assert!(text.contains("# TYPE active gauge\nactive -5\n"), "{text}");
        assert!(text.contains("# TYPE size histogram\n"), "{text}");
        assert!(
            text.contains("size_bucket{x=\"y\",le=\"1\"} 0\nsize_bucket{x=\"y\",le=\"5\"} 2\n"),
            "{text}"
        );
        assert!(text.contains("size_bucket{x=\"y\",le=\"+Inf\"} 2\nsize_sum{x=\"y\"} 5\nsize_count{x=\"y\"} 2\n"));
    }

    #[test]
    fn unused_and_unwanted_are_left_out() {
        let stats = Stats::new();
        stats.counter("zero", &[]);
        stats.counter("one", &[]).inc();
        stats.counter("other", &[]).inc();
        let text = Gathered::read(&[stats.reader()], |name| name != "other").prometheus(true);
        assert_eq!(text, "# TYPE one counter\none 1\n");
    }

    #[test]
    fn removed_metrics_are_gone() {
        let stats = Stats::new();
        let kept = stats.counter("c", &[("cluster_name", "a")]);
        stats.counter("c", &[("cluster_name", "b")]).inc();
        stats.remove(Owner::Cluster, "b");
        kept.inc();
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(false);
        assert_eq!(text, "# TYPE c counter\nc{cluster_name=\"a\"} 1\n");
    }

    #[test]
    fn label_sets_have_an_end_and_removed_ones_make_room() {
        let stats = Stats::new();
        for number in 0..MAX_LABEL_SETS {
            stats.counter("c", &[("cluster_name", &number.to_string())]).inc();
        }
        for late in ["late", "later"] {
            stats.counter("c", &[("cluster_name", late), ("of", "it")]).inc();
            stats.counter("other", &[("cluster_name", late)]).inc();
        }
        stats.counter("c", &[("listener", "l")]).inc();
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(false);
        for line in [
            "c{cluster_name=\"overflow\",of=\"overflow\"} 2",
            "c{listener=\"overflow\"} 1",
            "other{cluster_name=\"later\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        for number in 0..10 {
            stats.remove(Owner::Cluster, &number.to_string());
        }
        stats.counter("c", &[("cluster_name", "late"), ("of", "it")]).add(7);
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(false);
        assert!(text.contains("c{cluster_name=\"late\",of=\"it\"} 7"), "{text}");
        assert!(!text.contains("c{cluster_name=\"0\"}"), "{text}");
    }

    #[test]
    fn envoys_names() {
        let labels = |l: &[(&'static str, &str)]| l.iter().map(|(n, v)| (*n, (*v).to_owned())).collect::<Labels>();
        for (name, given, expected) in [
            (
                "envoy_cluster_upstream_cx_total",
                labels(&[("cluster_name", "a")]),
                "cluster.a.upstream_cx_total",
            ),
            ("envoy_server_uptime", labels(&[]), "server.uptime"),
            (
                "istio_requests_total",
                labels(&[("reporter", "source")]),
                "istio_requests_total{reporter=source}",
            ),
            (
                "envoy_http_downstream_rq_xx",
                labels(&[("http_conn_manager_prefix", "p"), ("response_code_class", "2")]),
                "http.p.downstream_rq_xx{response_code_class=2}",
            ),
        ] {
            assert_eq!(dotted(name, &given), expected);
        }
    }
}
