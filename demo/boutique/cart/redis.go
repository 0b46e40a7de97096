package cart

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// keep is how long an untouched cart lives.
const keep = 48 * time.Hour

// add adds to one line of a cart unless a limit would break. A script, because
// Redis runs it alone: two additions at the same moment cannot pass the limit
// together.
//
// KEYS[1] the cart; ARGV product, quantity, pieces per line, lines, seconds.
var add = redis.NewScript(`
local had = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if had + tonumber(ARGV[2]) > tonumber(ARGV[3]) then return 0 end
if had == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1`)

// Redis is a Store of one hash per shopper, kept 48 hours after its last change.
type Redis struct {
	client *redis.Client
}

// NewRedis returns the store at host:port. It connects when it is first used.
func NewRedis(address string) *Redis {
	return &Redis{client: redis.NewClient(&redis.Options{
		Addr:                  address,
		MaxRetries:            -1, // failures are shown, not repeated
		DialerRetries:         1,
		DialTimeout:           2 * time.Second,
		ReadTimeout:           2 * time.Second,
		WriteTimeout:          2 * time.Second,
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
		// Only managed Redis offerings answer the subscription.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
}

// Close closes the connections.
func (r *Redis) Close() { _ = r.client.Close() }

func key(shopper string) string { return "cart:" + shopper }

// Add implements Store.
func (r *Redis) Add(ctx context.Context, shopper, product string, quantity int32) error {
	added, err := add.Eval(ctx, r.client, []string{key(shopper)}, product, quantity, MaxQuantity, MaxLines, int(keep.Seconds())).Int()
	if err == nil && added == 0 {
		return ErrFull
	}
	return err
}

// Lines implements Store.
func (r *Redis) Lines(ctx context.Context, shopper string) (map[string]int32, error) {
	fields, err := r.client.HGetAll(ctx, key(shopper)).Result()
	if err != nil {
		return nil, err
	}
	lines := make(map[string]int32, len(fields))
	for product, text := range fields {
		quantity, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("hash %s, field %s: %q is not a quantity; somebody else writes to this Redis", key(shopper), product, text)
		}
		lines[product] = int32(quantity)
	}
	return lines, nil
}

// Empty implements Store.
func (r *Redis) Empty(ctx context.Context, shopper string) error {
	return r.client.Del(ctx, key(shopper)).Err()
}
