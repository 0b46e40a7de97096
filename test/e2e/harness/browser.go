//go:build e2e

package harness

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Order is what the confirmation page says.
type Order struct {
	Number string
	Calls  []MeshCall
}

// MeshCall is a row of the shop's footer: a call, and the identity that the called application saw.
type MeshCall struct {
	Service, Client, Server, ServedBy, Status string
	// Clusters of both ends, as the client's certificate and the server say them.
	ClientCluster, ServerCluster string
}

// OpenBrowser starts Debian's Chromium without a window.
func OpenBrowser(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.WindowSize(1280, 1000))
	allocator, stopAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	browser, closeBrowser := chromedp.NewContext(allocator)
	limited, cancel := context.WithTimeout(browser, 2*time.Minute)
	t.Cleanup(func() { cancel(); closeBrowser(); stopAllocator() })
	// The context of the first call owns the browser: it must not be that of a single step.
	if err := chromedp.Do(limited); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return limited
}

// Buy walks through the shop as a person would: product page, cart, checkout, order number.
func Buy(t *testing.T, browser context.Context, shop string, products ...string) Order {
	t.Helper()
	for _, product := range products {
		card := chromedp.CSS(fmt.Sprintf(`[data-testid=product-card][data-product=%q] a`, product))
		Walk(t, browser, chromedp.Navigate(shop+"/"), chromedp.Click(card), chromedp.WaitVisible(chromedp.CSS("#add-to-cart")),
			chromedp.Click(chromedp.CSS("#add-to-cart")), chromedp.WaitVisible(chromedp.CSS("#go-to-checkout")))
	}
	Walk(t, browser, chromedp.Navigate(shop+"/cart"), chromedp.Click(chromedp.CSS("#go-to-checkout")), chromedp.WaitVisible(chromedp.CSS("#place-order")),
		chromedp.Click(chromedp.CSS("#place-order")), chromedp.WaitVisible(chromedp.CSS("#order-number")))
	return Order{Number: Read(t, browser, chromedp.Text(chromedp.CSS("#order-number"))), Calls: MeshCalls(t, browser)}
}

// MeshCalls reads the footer of the page that the browser shows.
func MeshCalls(t *testing.T, browser context.Context) []MeshCall {
	t.Helper()
	return Read(t, browser, chromedp.Evaluate[[]MeshCall](`Array.from(document.querySelectorAll('[data-testid=mesh-call]')).map(e => ({
		Service: e.dataset.service, Client: e.dataset.client, Server: e.dataset.server, ServedBy: e.dataset.servedBy, Status: e.dataset.status,
		ClientCluster: e.dataset.clientCluster, ServerCluster: e.dataset.serverCluster}))`))
}

// networkChanged is what Chromium gives up a page for when an interface comes or goes on the machine, which starting another
// cluster does, whoever the page is loaded from.
const networkChanged = "ERR_NETWORK_CHANGED"

// Walk does what a visitor does, from an address that the first step names, and shows the page when that fails. Where the browser itself
// gave up since the machine's interfaces changed, it begins again, once.
func Walk(t *testing.T, browser context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for again := true; ; again = false {
		limited, cancel := context.WithTimeout(browser, 30*time.Second)
		err := chromedp.Do(limited, steps...)
		cancel()
		if err == nil {
			return
		}
		page, readErr := chromedp.Run(browser, chromedp.Text(chromedp.CSS("body")))
		if readErr != nil {
			page = readErr.Error()
		}
		if !again || !strings.Contains(page+err.Error(), networkChanged) {
			t.Fatalf("%v; the page says:\n%.1000s", err, page)
		}
	}
}

// Read looks something up in the page, and fails the test when it cannot.
func Read[T any](t *testing.T, browser context.Context, what chromedp.Action[T]) T {
	t.Helper()
	got, err := chromedp.Run(browser, what)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Screenshot keeps a picture of the page when a folder for it is named.
func Screenshot(t *testing.T, browser context.Context, name string) {
	t.Helper()
	dir := os.Getenv("HEDDLE_E2E_SCREENSHOTS")
	if dir == "" {
		return
	}
	png := Read(t, browser, chromedp.FullScreenshot(100))
	if err := os.WriteFile(dir+"/"+name+".png", png, 0o644); err != nil {
		t.Fatal(err)
	}
}
