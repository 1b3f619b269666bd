// Search without a server: browsers start no workers from file://, so the search runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data: structuredClone(data) })
        this.onmessage?.(event)
        this.dispatchEvent(event)
      }
      const script = inside.document.createElement("script")
      script.src = url
      this.loaded = new Promise(resolve => (script.onload = () => resolve(inside)))
      inside.document.documentElement.append(script)
    }
    async postMessage(data) {
      const inside = await this.loaded
      // a copy, as for a worker: the search changes the query that it gets, which is that of the input
      inside.dispatchEvent(new inside.MessageEvent("message", { data: inside.structuredClone(data) }))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
