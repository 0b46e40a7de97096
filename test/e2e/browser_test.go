//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// order is what the confirmation page says.
type order struct {
	number string
	calls  []meshCall
}

// meshCall is a row of the shop's footer: a call, and the identity that the called application saw.
type meshCall struct {
	Service, Client, Server, ServedBy, Status string
}

// openBrowser starts Debian's Chromium without a window.
func openBrowser(t *testing.T) context.Context {
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

// buy walks through the shop as a person would: product page, cart, checkout, order number.
func buy(t *testing.T, browser context.Context, shop string, products ...string) order {
	t.Helper()
	for _, product := range products {
		card := chromedp.CSS(fmt.Sprintf(`[data-testid=product-card][data-product=%q] a`, product))
		walk(t, browser, chromedp.Navigate(shop+"/"), chromedp.Click(card), chromedp.WaitVisible(chromedp.CSS("#add-to-cart")),
			chromedp.Click(chromedp.CSS("#add-to-cart")), chromedp.WaitVisible(chromedp.CSS("#go-to-checkout")))
	}
	walk(t, browser, chromedp.Click(chromedp.CSS("#go-to-checkout")), chromedp.WaitVisible(chromedp.CSS("#place-order")),
		chromedp.Click(chromedp.CSS("#place-order")), chromedp.WaitVisible(chromedp.CSS("#order-number")))
	return order{number: read(t, browser, chromedp.Text(chromedp.CSS("#order-number"))), calls: meshCalls(t, browser)}
}

// meshCalls reads the footer of the page that the browser shows.
func meshCalls(t *testing.T, browser context.Context) []meshCall {
	t.Helper()
	return read(t, browser, chromedp.Evaluate[[]meshCall](`Array.from(document.querySelectorAll('[data-testid=mesh-call]')).map(e => ({
		Service: e.dataset.service, Client: e.dataset.client, Server: e.dataset.server, ServedBy: e.dataset.servedBy, Status: e.dataset.status}))`))
}

// walk does what a visitor does, and shows the page when that fails.
func walk(t *testing.T, browser context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	limited, cancel := context.WithTimeout(browser, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(limited, steps...); err != nil {
		page, readErr := chromedp.Run(browser, chromedp.Text(chromedp.CSS("body")))
		if readErr != nil {
			page = readErr.Error()
		}
		t.Fatalf("%v; the page says:\n%.1000s", err, page)
	}
}

func read[T any](t *testing.T, browser context.Context, what chromedp.Action[T]) T {
	t.Helper()
	got, err := chromedp.Run(browser, what)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// screenshot keeps a picture of the page when a folder for it is named.
func screenshot(t *testing.T, browser context.Context, name string) {
	t.Helper()
	dir := os.Getenv("HEDDLE_E2E_SCREENSHOTS")
	if dir == "" {
		return
	}
	png := read(t, browser, chromedp.FullScreenshot(100))
	if err := os.WriteFile(dir+"/"+name+".png", png, 0o644); err != nil {
		t.Fatal(err)
	}
}
