package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"heddle.io/heddle/control/objects"
)

// report keeps what is left of a batch.
func (j *Journal) report(ctx context.Context, r Report) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	// One that was kept before the batch was taken off is made anew.
	if err := j.store.Records().Delete(ctx, reportPrefix+r.ID); err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	if err := j.store.Records().Put(ctx, reportPrefix+r.ID, text, false); err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	j.reports = append(slices.DeleteFunc(j.reports, func(old Report) bool { return old.ID == r.ID }), r)
	var oldest string
	if len(j.reports) > maxReports {
		oldest, j.reports = j.reports[0].ID, slices.Delete(j.reports, 0, 1)
	}
	j.show()
	if oldest != "" {
		return j.store.Records().Delete(ctx, reportPrefix+oldest)
	}
	return nil
}

// resolve takes objects off the reports that were written since. A report that stays by mistake is taken off the next
// time.
func (j *Journal) resolve(ctx context.Context, keys map[objects.Key]bool) error {
	for i := 0; i < len(j.reports); {
		r := j.reports[i]
		rest := slices.DeleteFunc(slices.Clone(r.Left), func(l Left) bool { return keys[l.Key] })
		if len(rest) == len(r.Left) {
			i++
			continue
		}
		if err := j.store.Records().Delete(ctx, reportPrefix+r.ID); err != nil {
			return nil //nolint:nilerr // The change itself is made.
		}
		if len(rest) == 0 {
			j.reports = slices.Delete(j.reports, i, i+1)
			j.show()
			continue
		}
		r.Left = rest
		text, err := json.Marshal(r)
		if err == nil {
			err = j.store.Records().Put(ctx, reportPrefix+r.ID, text, false)
		}
		if err != nil {
			return nil //nolint:nilerr // As above.
		}
		j.reports[i] = r
		j.show()
		i++
	}
	return nil
}
