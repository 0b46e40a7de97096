package frontend

import (
	"bytes"
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"heddle.io/heddle/demo/boutique/money"
)

//go:embed pages static
var files embed.FS

// pages holds one template set per page: the frame and the page's own file.
var pages = func() map[string]*template.Template {
	frame := template.Must(template.New("").Funcs(template.FuncMap{"money": money.Format, "cost": money.Times, "join": strings.Join}).
		ParseFS(files, "pages/frame.html", "pages/parts.html"))
	sets := map[string]*template.Template{}
	for _, name := range []string{"home", "product", "cart", "checkout", "order", "error"} {
		sets[name] = template.Must(template.Must(frame.Clone()).ParseFS(files, "pages/"+name+".html"))
	}
	return sets
}()

// frame is what a page template gets.
type frame struct {
	Title      string
	Currency   string
	Currencies []string
	CartCount  int
	// CartKnown is false on error pages, which may not know the cart.
	CartKnown bool
	ReturnTo  string
	Query     string
	Notices   []string
	Calls     []call
	// Clusters answered the calls.
	Clusters []string
	ServedBy string
	// Page is the page's own content.
	Page any
}

// render writes a page. The template runs into a buffer first, so that an error
// in it cannot leave half a page.
func (v *visit) render(status int, name, title string, content any) {
	returnTo := "/"
	if v.r.Method == http.MethodGet {
		returnTo = v.r.URL.RequestURI()
	} else if strings.HasSuffix(v.r.URL.Path, "/checkout") {
		returnTo = "/checkout"
	}
	var page bytes.Buffer
	calls := v.calls()
	err := pages[name].ExecuteTemplate(&page, "frame", frame{
		Title:      title,
		Currency:   v.currency,
		Currencies: v.currencies,
		CartCount:  v.cartCount(),
		CartKnown:  v.cart != nil,
		ReturnTo:   returnTo,
		Query:      v.r.URL.Query().Get("q"),
		Notices:    v.notices,
		Calls:      calls,
		Clusters:   clusters(calls),
		ServedBy:   v.shop.ServedBy,
		Page:       content,
	})
	if err != nil {
		v.shop.Log.Error("page not rendered", "page", name, "cause", err.Error())
		http.Error(v.w, "Something broke on our side; the shop's log has the cause.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.Header().Set("Cache-Control", "no-store")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(page.Bytes()) // the visitor may have gone
}

// staticFiles serves the style sheet and the pictures, and no listings.
func staticFiles() http.Handler {
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		if info, err := fs.Stat(files, name); err != nil || info.IsDir() {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=3600")
		serve.ServeHTTP(w, r)
	})
}
