package translate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"heddle.io/heddle/control/model"
)

// Parts come in the order in which all are, whatever became of that in between.
func TestPartsKeepTheirOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var b byHost[model.DestinationPolicy]
	var all []*model.DestinationPolicy
	for round := range 500 {
		next := slices.Clone(all)
		at := func() int { return random.IntN(len(next)) }
		switch part := new(model.DestinationPolicy); {
		case len(next) < 3 || random.IntN(4) == 0:
			next = slices.Insert(next, random.IntN(len(next)+1), part)
		case random.IntN(3) == 0:
			i := at()
			next = slices.Delete(next, i, i+1)
		case random.IntN(4) == 0:
			i, j := at(), at()
			next[i], next[j] = next[j], next[i]
		default:
			next[at()] = part
		}
		all = next
		if b.place(all); random.IntN(3) == 0 {
			continue
		}
		some := slices.DeleteFunc(slices.Clone(all), func(*model.DestinationPolicy) bool { return random.IntN(2) == 0 })
		shuffled := slices.Clone(some)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if got := b.sorted(shuffled); !slices.Equal(got, some) {
			t.Fatalf("round %d: %v, want %v", round, got, some)
		}
	}
}
