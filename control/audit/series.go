package audit

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/server/client"
)

// Series tells how far back the log goes. A series whose files cannot be read has no oldest record.
func (l *Log) Series() []client.AuditSeries {
	var out []client.AuditSeries
	for _, s := range []struct {
		name string
		file *file
	}{{"changes", &l.done}, {"signings", &l.signed}, {"refusals", &l.refused}} {
		series := client.AuditSeries{Name: s.name, FilesRemoved: s.file.removed.Load()}
		if at, err := s.file.oldest(); err != nil {
			l.options.Log.Debug("oldest record of the audit log not read", "series", s.name, "error", err)
		} else if !at.IsZero() {
			series.Oldest = &at
		}
		out = append(out, series)
	}
	return out
}

// Excess counts changes that were refused because their caller made too many.
func (l *Log) Excess() uint64 { return l.excess.Load() }

// oldest is the time of the oldest record of a series, zero when there is none.
func (f *file) oldest() (time.Time, error) {
	parts, err := f.parts(time.Time{})
	defer closeAll(parts)
	if err != nil {
		return time.Time{}, err
	}
	for e, err := range entries(context.Background(), parts, client.AuditFilter{}, false) {
		return e.time, err
	}
	return time.Time{}, nil
}

// measures gives a log's series to Prometheus.
type measures struct {
	log             *Log
	oldest, removed *prometheus.Desc
}

// Measure tells of a log in a registry of metrics.
func Measure(l *Log, metrics prometheus.Registerer) {
	series := []string{"series"}
	metrics.MustRegister(measures{log: l,
		oldest:  prometheus.NewDesc("heddle_audit_oldest_record_timestamp_seconds", "Time of the oldest record of the audit log.", series, nil),
		removed: prometheus.NewDesc("heddle_audit_files_removed_total", "Files of the audit log that were removed because there were too many.", series, nil)},
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "heddle_audit_changes_refused_total", Help: "Changes refused because their caller fills too much of the audit log."},
			func() float64 { return float64(l.Excess()) }))
}

// Describe implements [prometheus.Collector].
func (m measures) Describe(out chan<- *prometheus.Desc) {
	out <- m.oldest
	out <- m.removed
}

// Collect implements [prometheus.Collector].
func (m measures) Collect(out chan<- prometheus.Metric) {
	for _, s := range m.log.Series() {
		out <- prometheus.MustNewConstMetric(m.removed, prometheus.CounterValue, float64(s.FilesRemoved), s.Name)
		if s.Oldest != nil {
			out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, float64(s.Oldest.Unix()), s.Name)
		}
	}
}
