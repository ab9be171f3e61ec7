package bmc

import (
	"slices"
	"strconv"
	"time"
)

func (c *Controller) serviceRoot() object {
	root := object{
		"@odata.id": base, "@odata.type": "#ServiceRoot.v1_5_0.ServiceRoot", "Id": "RootService", "Name": "Root Service", "RedfishVersion": "1.8.0",
		"UUID": c.cfg.UUID, "Systems": ref(base + "/Systems"), "Chassis": ref(base + "/Chassis"), "Managers": ref(base + "/Managers"),
		"UpdateService": ref(base + "/UpdateService"), "Tasks": ref(base + "/TaskService"),
	}
	if !c.is(NoSessions) {
		root["SessionService"] = ref(base + "/SessionService")
		root["Links"] = object{"Sessions": ref(base + "/SessionService/Sessions")}
	}
	return root
}

func sessionService() object {
	return object{
		"@odata.id": base + "/SessionService", "@odata.type": "#SessionService.v1_0_0.SessionService", "Id": "SessionService", "Name": "Session Service",
		"ServiceEnabled": true, "SessionTimeout": 600, "Sessions": ref(base + "/SessionService/Sessions"),
	}
}

func (c *Controller) system() object {
	on := c.cfg.Host.On()
	c.mu.Lock()
	defer c.mu.Unlock()
	state := "Off"
	if on {
		state = "On"
	}
	reset := object{"target": systemPath + "/Actions/ComputerSystem.Reset"}
	switch {
	case c.odd[ResetTypesInfo]:
		reset["@Redfish.ActionInfo"] = systemPath + "/ResetActionInfo"
	case !c.odd[NoResetTypes]:
		reset["ResetType@Redfish.AllowableValues"] = resetTypes()
	}
	s := object{
		"@odata.id": systemPath, "@odata.type": "#ComputerSystem.v1_13_0.ComputerSystem", "Id": "1", "Name": c.cfg.Name, "SystemType": "Virtual",
		"Manufacturer": "Leasehold", "Model": "Virtual machine", "SerialNumber": c.cfg.Serial, "UUID": c.cfg.UUID, "BiosVersion": "SeaBIOS",
		"PowerState": state, "Status": object{"State": "Enabled", "Health": "OK"},
		"Boot": object{
			"BootSourceOverrideEnabled": c.boot.Enabled, "BootSourceOverrideTarget": c.boot.Target, "BootSourceOverrideMode": "Legacy",
			"BootSourceOverrideTarget@Redfish.AllowableValues": []string{"None", "Pxe", "Hdd"},
		},
		"Actions":            object{"#ComputerSystem.Reset": reset},
		"EthernetInterfaces": ref(systemPath + "/EthernetInterfaces"), "LogServices": ref(systemPath + "/LogServices"), "Bios": ref(systemPath + "/Bios"),
		"SerialConsole": object{"MaxConcurrentSessions": 1, "SSH": object{"ServiceEnabled": false, "Port": 22}, "IPMI": object{"ServiceEnabled": false}},
		"Links":         object{"Chassis": []object{ref(base + "/Chassis/1")}, "ManagedBy": []object{ref(base + "/Managers/1")}},
	}
	if !c.odd[NoEtag] {
		s["@odata.etag"] = c.etag()
	}
	return s
}

func (c *Controller) nic() object {
	return object{
		"@odata.id": systemPath + "/EthernetInterfaces/1", "Id": "1", "Name": "network card", "MACAddress": c.cfg.MAC, "PermanentMACAddress": c.cfg.MAC,
		"Status": object{"State": "Enabled", "Health": "OK"},
	}
}

func bios() object {
	return object{
		"@odata.id": systemPath + "/Bios", "Id": "Bios", "Name": "BIOS settings", "Attributes": object{"Tpm2Operation": "NoAction"},
		"Actions": object{"#Bios.ResetBios": object{"target": systemPath + "/Bios/Actions/Bios.ResetBios"}},
	}
}

// entries are the event log's, the newest first, as real ones are.
func (c *Controller) entries() object {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := systemPath + "/LogServices/SEL/Entries"
	members := []object{}
	for i, e := range slices.Backward(c.events) {
		id := strconv.Itoa(i + 1)
		members = append(members, object{
			"@odata.id": path + "/" + id, "Id": id, "Name": "log entry " + id, "EntryType": "SEL", "Severity": e.severity, "Message": e.message,
			"Created": e.at.Format(time.RFC3339),
		})
	}
	return object{"@odata.id": path, "Name": "Entries", "Members": members, "Members@odata.count": len(members)}
}

func (c *Controller) chassis() object {
	return object{
		"@odata.id": base + "/Chassis/1", "@odata.type": "#Chassis.v1_10_0.Chassis", "Id": "1", "Name": "chassis", "ChassisType": "RackMount",
		"Manufacturer": "Leasehold", "Model": "Virtual machine", "SerialNumber": c.cfg.Serial, "Status": object{"State": "Enabled", "Health": "OK"},
		"Links": object{"ComputerSystems": []object{ref(systemPath)}, "ManagedBy": []object{ref(base + "/Managers/1")}},
	}
}

func (c *Controller) manager() object {
	return object{
		"@odata.id": base + "/Managers/1", "@odata.type": "#Manager.v1_10_0.Manager", "Id": "1", "Name": "BMC", "ManagerType": "BMC", "FirmwareVersion": "1.0",
		"UUID": c.cfg.UUID, "Status": object{"State": "Enabled", "Health": "OK"}, "LogServices": ref(base + "/Managers/1/LogServices"),
		"Links": object{"ManagerForServers": []object{ref(systemPath)}},
	}
}
