// Search in a site that is opened from a disk. Browsers load no workers from file:, so the worker of the search runs in a
// hidden frame there. On a server nothing changes. The name of this file tells the theme that it needs no script of its own.
if (location.protocol === "file:") {
  const load = (page, url) =>
    new Promise((resolve, reject) => {
      const script = page.createElement("script")
      script.src = new URL(url, location.href).href
      script.onload = resolve
      script.onerror = reject
      page.head.append(script)
    })

  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write("<!doctype html><head></head><body></body>")
      inside.document.close()
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) =>
        urls.reduce((done, next) => done.then(() => load(inside.document, next)), Promise.resolve())
      this.loaded = load(inside.document, url)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
