package push

import (
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/translate"
)

// countPatches says of EnvoyFilters which of their patches change nothing, and which are left out because they break something.
func (p *Pusher) countPatches(all []Progress) {
	states := map[*model.Patch]*translate.PatchState{}
	var order []*model.Patch
	for _, g := range p.groups {
		if g.proxies == 0 {
			continue
		}
		var of []translate.PatchState
		if g.client != nil {
			of = g.client.Patches()
		} else if g.made != nil {
			of = g.made.Patches()
		}
		for _, s := range of {
			total := states[s.Patch]
			if total == nil {
				total = &translate.PatchState{Patch: s.Patch}
				states[s.Patch] = total
				order = append(order, s.Patch)
			}
			total.Changed += s.Changed
			total.Broken = append(total.Broken, s.Broken...)
		}
	}
	for _, patch := range order {
		n, used := p.numbers[patch.Source.Key]
		if !used {
			continue
		}
		s, to := states[patch], &all[n]
		if len(s.Broken) > 0 {
			if to.Broken == nil {
				to.Broken = map[string][]string{}
			}
			slices.Sort(s.Broken)
			s.Broken = slices.Compact(s.Broken)
			to.Broken[patch.Source.Path] = s.Broken[:min(len(s.Broken), translate.MaxBroken)]
		} else if s.Changed == 0 {
			to.Idle = append(to.Idle, patch.Source.Path)
		}
	}
	for i := range all {
		slices.Sort(all[i].Idle)
	}
}
